"""Prunella in a Flower app of your own."""
