"""Precision gears: linear layers that shift between FP32, BF16, FP16 and FP8 while a model trains."""
