"""Secure aggregation (``aggregation=secure-sum``): the server learns the weighted sum of a round's updates alone."""
