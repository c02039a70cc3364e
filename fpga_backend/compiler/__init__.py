"""From a PyTorch model to a program, by torch.export.

* compiling         ``compile`` and ``sync``, what users call; the copy that is traced, and the comparison with it
* trace             the model's graph of ATen operators
* values, lower     what each node of the graph stands for; arithmetic by hand that is one operator
* blocks            operators, and what attention lets a token see
* draft, finish     the program in the making; its head, fused linear layers
* recipe, quantize  how tensors are made of parameters, and made
* smooth            SmoothQuant
"""

from greentrain.fpga_backend.compiler.compiling import compile, sync
from greentrain.fpga_backend.compiler.smooth import SmoothQuant

__all__ = ["SmoothQuant", "compile", "sync"]
