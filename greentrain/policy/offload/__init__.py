"""Where each stage of an RLHF step runs: on the GPU, or on the device beside it. NumPy only, without torch."""
