"""AdamW that keeps its footing when the precision changes.

Low precision adds noise to the gradient. With gamma, the ratio of the noise that Adam sees in a gear to that in BF16, a
step becomes

    theta <- theta - eta m / (gamma sqrt(v) + eps) - eta lambda theta

which is shorter by up to gamma and decays weights as before. That is a stock AdamW step with lr/gamma, eps/gamma and
lambda gamma, so every existing kernel takes it at no cost::

    adapted = adapt(optimizer, lambda: 4.0 if box.gear == "fp8" else 1.0)     # any Adam, in place
    optimizer = GearAdamW(model.parameters(), lr=3e-4, fused=True, gamma=4.0) # or torch's AdamW with an argument more

gamma and the gear come in as numbers or callables; this package knows of no other.

Which gamma? What is measured, ``precision.gamma: measured``. The FP8 noise of a gradient is 3 to 9 % of its norm and
far below the noise between minibatches, which Adam's v holds too, so the ratio is 1.001 to 1.02. The constant 4 of the
paper, ``precision.gamma: paper``, made small GPTs worse, as much as the learning rate divided by 4 in the same steps
did; its formula as printed made them worse still. :mod:`greentrain.optim.forms` says what was corrected, and derives
the mapping.

* forms        the three forms, gamma, and other numbers in the param groups for the length of a step
* adapt        which optimizers take an Adam step, hooks around any of them, and the same as a subclass of torch's AdamW
"""

from greentrain.optim.adapt import Adapted, GearAdamW, adapt
from greentrain.optim.forms import PAPER_GAMMA, Form

__all__ = ["PAPER_GAMMA", "Adapted", "Form", "GearAdamW", "adapt"]
