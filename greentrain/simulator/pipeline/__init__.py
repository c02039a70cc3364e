"""An RLHF step as a pipeline: what frozen passes on another device would save, and what physics allows. Without torch.

Tables of stages come from a run, a file, a published split or a model of a card; every figure says which.
"""
