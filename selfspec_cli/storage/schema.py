"""Schema version of every artefact, and the history of the formats."""

SCHEMA_VERSION = 1
# History, newest first. An older version is read only where a line here says how.
# 1, after 0.3.0: ngrams, free_repeated and plain_repeated in confirm; of runs without them nothing
#    is said about repeated text.
# 1, since 0.2.0: also plan.yaml (with a schema version of its own), prefill_seconds in walk, bucket
#    and role in confirm, rows and lines of each reason in the manifest's `read.skipped`. Runs of
#    0.1.0 lack these; they are not planned, and not resumed either, being other measurements.
# 1 (0.1.0): manifest.json; requests, paths, observations, walk .parquet; cost, grid, confirm .csv.
