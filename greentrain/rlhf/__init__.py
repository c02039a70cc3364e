"""The frozen passes of RLHF, reward and reference, beside generation and training.

* kinds, frozen_pass       what a pass is, and where it may run
* engine, stream           submit, and the barrier at which a result is needed; rollouts as they finish
* batching, text           padded matrices and texts, and the sequences in them
* scheduler, edi_meter     where each pass runs, decided while the training runs
* settings, offload        what YAML says; from settings to an engine
* serve, client            passes over HTTP
* trl                      TRL; openrlhf_*, roll_workers and verl_* the other frameworks
"""
