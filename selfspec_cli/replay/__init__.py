"""Replaying requests through the decoder: observed paths, real rounds, sweeps of cells."""
