"""Shared ground of every room: trees, masks, records, the wire codec, settings, randomness, metrics, errors."""
