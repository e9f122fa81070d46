"""The loop's defenses in somebody else's loop."""
