"""The server: run loop, checkpoints, audits, exporter, run store, report."""
