"""The frozen passes of RLHF, reward and reference, beside generation and training.

* kinds, frozen_pass    what a pass is, and where it may run
* engine, ticket        submit, and the barrier at which a result is needed
* stream, parts         rollouts as they finish; batches in parts
* stats                 how long a device was busy, and how long the training waited for it
"""
