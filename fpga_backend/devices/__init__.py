"""Devices that are no FPGA: the baselines to beat, and the one that computes nothing.

* torch_device       floating point on the CPU or a CUDA GPU
* null_device        for "no offload" and for tests of the plumbing
"""
