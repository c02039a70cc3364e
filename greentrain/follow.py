"""A run folder as it grows."""
