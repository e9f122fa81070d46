"""What attacks share: descents that can be resumed, derivatives of layers, objectives, labels and priors."""
