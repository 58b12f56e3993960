"""Real decoding of a plan beside its rivals, by bucket and batch size."""
