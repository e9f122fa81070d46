"""A federation of several machines."""
