"""What a training run will cost the climate, before it starts. Imports no torch.

* values          ranges, and assumptions with their sources
* model_shape     a transformer's shape: parameters in all and active, FLOP a token
* workload        what is trained: tokens, sequence, batch, precision
* accelerator     a device as its makers and its auditors describe it
* cluster         how many of them, where, for how long
"""
