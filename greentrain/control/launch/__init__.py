"""``greentrain launch``: brings a training back after it left, later, wider or after a crash, and leaves no orphan.

::

    greentrain launch (supervisor)      state on disk, signals, when and how wide to start again; never imports torch
      └─ reaper                         ends everything below it when the supervisor or the command ends in any way
           └─ the command               as it was typed: torchrun, accelerate launch, mpirun, python, ...
           └─ or agent                  torch's elastic_launch, resident over all attempts of a job
                └─ fork server          torch and its frameworks imported once
                     └─ workers         forked, so that a resize pays no imports

What it says to the training and hears from it is in ``greentrain.control.launcher_protocol``.
"""
