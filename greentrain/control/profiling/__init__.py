"""Measuring what each gear and power limit costs in the running training."""
