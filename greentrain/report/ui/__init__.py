"""A local page over many runs."""
