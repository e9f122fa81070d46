"""How claims are run, judged and stored."""
