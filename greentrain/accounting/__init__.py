"""Interval by interval: joules, grid intensity and hardware to grams."""
