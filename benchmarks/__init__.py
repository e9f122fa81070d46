"""Measurements: speed, wire, attacks. Every program takes ``--json``."""
