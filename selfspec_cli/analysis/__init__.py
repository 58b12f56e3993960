"""Pure functions from the files of a run to predictions; numpy, pandas, scipy, never torch."""
