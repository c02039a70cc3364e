"""Cards through AMD's XRT."""
