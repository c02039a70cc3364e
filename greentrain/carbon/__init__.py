"""Carbon-intensity signals."""
