"""Verilog of the systolic array.

Experimental: simulated by Verilator, synthesised by yosys, never placed, routed or run on a card.
"""
