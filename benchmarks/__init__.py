"""Measurements: the engine and the claims of the papers (``prunella reproduce``), and what things cost (``speed``)."""
