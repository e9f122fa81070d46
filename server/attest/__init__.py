"""A run as a document that can be filed: what was tried and found, signed, and checked without a network."""
