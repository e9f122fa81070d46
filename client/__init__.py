"""The client: receive, compose, train, defend, reply; answer consented audits; keep state on its own disk."""
