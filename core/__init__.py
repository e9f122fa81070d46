"""What every package shares: trees, masks, settings, randomness, metrics, errors."""
