"""Power meters, the energy curve and its sampler."""
