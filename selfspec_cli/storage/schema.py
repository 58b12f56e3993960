"""Schema version of every artefact, and the history of the formats."""

SCHEMA_VERSION = 1
# History, newest first. An older version is read only where a line here says how.
# 1 (0.1.0): manifest.json; requests, paths, observations, walk .parquet; cost, grid, confirm .csv.
