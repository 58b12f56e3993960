"""The decoder: a layer-range view of a Hugging Face model, one KV cache, laws, rounds.

Everything here needs torch; nothing here reads traces, times anything or prints.
"""
