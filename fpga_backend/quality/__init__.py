"""What quantisation does to ranks and log-probabilities."""
