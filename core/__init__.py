"""Shared ground of every room: trees, masks, settings, randomness, metrics, errors."""
