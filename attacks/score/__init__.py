"""How like the original a reconstruction is, and what that is worth."""
