"""An offloaded reward from a recipe alone.

Example::

    # trl grpo --config recipe.yaml
    env: {GREENTRAIN_OFFLOAD: offload.yaml}
    reward_funcs: [greentrain.rlhf.trl.yaml_reward.offloaded_reward]

``offload.yaml`` is as in ``greentrain.rlhf.settings``. Each process of a launch opens the device for itself: a card
that several of them share goes behind ``device: {name: remote}``.
"""

import atexit
import contextlib
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from greentrain.errors import ConfigError
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.offload import Offload, has_tokenizer
from greentrain.rlhf.settings import OffloadSettings
from greentrain.rlhf.trl.reward import OffloadedReward

VARIABLE = "GREENTRAIN_OFFLOAD"
"""Environment variable with the path of the settings."""
LABEL = "GREENTRAIN_OFFLOAD_LABEL"
"""Environment variable that says which score is the reward, where a model has several."""


_opened = contextlib.ExitStack()
"""What this process has open, from the first reward to the end."""


@functools.cache
def _reward() -> OffloadedReward:
    """Open device and model, once a process: TRL asks for plain rewards in one thread."""
    with contextlib.ExitStack() as opened:
        offload = opened.enter_context(Offload(settings()))
        reward = OffloadedReward(offload.engine, offload.text[PassKind.REWARD], label=_label())
        _opened.push(opened.pop_all())
    return reward


def settings() -> OffloadSettings:
    """Read the settings that the environment names, without opening anything.

    Raises:
        ConfigError: The variable is not set, or the settings are wrong or hold no reward with a tokenizer.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        raise ConfigError(
            f"{VARIABLE} is not set: give the path of the offload's settings, in the recipe as env: "
            f"{{{VARIABLE}: offload.yaml}}"
        )
    found = OffloadSettings.load(path)
    if found.reward is None:
        raise ConfigError(f"{path} (from {VARIABLE}) has no reward: name the model's folder as reward: {{model: ...}}")
    if not has_tokenizer(found.reward):
        raise ConfigError(
            f"reward.model is {found.reward.model!r} (in {path}, from {VARIABLE}), which holds no tokenizer: save the "
            "tokenizer into the model's folder"
        )
    _label()
    return found


def close() -> None:
    """Close the device of this process; the end of the process does so too. The next reward opens it again."""
    _reward.cache_clear()
    _opened.close()


atexit.register(close)


def _score(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Score completions; the first call opens the device."""
    return _reward()(prompts, completions, **columns)


_score.__name__ = _score.__qualname__ = "offloaded_reward"

if TYPE_CHECKING:
    offloaded_reward = _score


def __getattr__(name: str) -> Any:
    if name != "offloaded_reward":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    settings()  # TRL looks functions up before it loads a model: what is wrong is said then
    return _score


def _label() -> int | None:
    text = os.environ.get(LABEL)
    if not text:
        return None
    if not text.isdigit():
        raise ConfigError(f"{LABEL}={text!r}: give the number of the score that is the reward, from 0")
    return int(text)
