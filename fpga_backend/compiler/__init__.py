"""From a PyTorch model to a program, by torch.export.

* compiling, syncing  ``compile`` and ``sync``: what users call
* twin, trace         a copy of the model with random weights, and its graph of ATen operators
* values, lower       what each node of the graph stands for
* terms, patterns     arithmetic by hand that is one operator: RMS norm, gelu, rotary positions, means
* blocks, masks       operators, and what attention lets a token see
* draft, finish       the program in the making; its head, fused linear layers
* recipe, quantize    how tensors are made of parameters, and made
* floating, selfcheck the program in floating point, and the comparison with the model
* smooth              SmoothQuant
"""

from greentrain.fpga_backend.compiler.compiling import compile
from greentrain.fpga_backend.compiler.smooth import SmoothQuant
from greentrain.fpga_backend.compiler.syncing import sync

__all__ = ["SmoothQuant", "compile", "sync"]
