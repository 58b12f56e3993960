"""Decide, from real traffic, whether self-speculative decoding pays and with which (L, k)."""

__version__ = "0.3.0"
