"""Verilog of the systolic array."""
