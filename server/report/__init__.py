"""The report of a run, and the same page live."""
