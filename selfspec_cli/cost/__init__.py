"""What decoding costs on this machine: parts of a round, whole rounds, the bandwidth floor.

Everything is timed with the decoder's own functions, so a faster decoder is a cheaper one here.
"""
