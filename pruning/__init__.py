"""Which weights go: scores of weights, exact selection, and the reconfiguration of PruneFL."""
