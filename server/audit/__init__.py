"""Audits of a run: the queue, its workers, the canaries."""
