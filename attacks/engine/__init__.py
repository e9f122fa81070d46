"""What attacks share: problems, layers by hand, descents, objectives, priors."""
