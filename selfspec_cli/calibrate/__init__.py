"""The main job, stage by stage: traces, observe, cost, walk, confirm or sweep.

Stages meet at the files of the run directory; each is skipped where its files are complete, and
goes on from its finished shards where it was interrupted.
"""
