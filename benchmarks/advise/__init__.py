"""``prunella advise``: which defense for one's own model, data and sites."""
