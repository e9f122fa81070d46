"""The codec: how trees travel and what a record of a message holds."""
