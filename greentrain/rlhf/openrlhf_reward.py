"""OpenRLHF's rewards from ``greentrain serve``, where the plain URL does not do.

Read against OpenRLHF 0.11.0 (3c3be623) and 0.11.2, not run in OpenRLHF. The plain way needs no file:
``--reward.remote_url http://127.0.0.1:8700/get_reward``. This one adds what OpenRLHF's own client lacks: a token that
stands in no command line, waits of minutes for a server, several of which one may be down, and an error that says what
to do (OpenRLHF logs a failed reward as information and stops later, for a reason that names no server)::

    export GREENTRAIN_URL=http://127.0.0.1:8700 GREENTRAIN_TOKEN_FILE=~/.greentrain-token
    --reward.remote_url "$(python -c 'import greentrain.rlhf.openrlhf_reward as m; print(m.__file__)')"

OpenRLHF calls the function once a rollout, as soon as it is finished, from a thread of the vLLM actor.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from greentrain.rlhf.client import ServeClient, ServeError

_logger = logging.getLogger(__name__)


def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **_: Any) -> dict[str, Any]:
    """Return the rewards of texts.

    Args:
        queries: Prompts with their responses, special tokens included.
        prompts: Prompts that OpenRLHF passes; not used.
        labels: Labels that OpenRLHF passes; not used.

    Returns:
        ``rewards`` and ``scores``, float32 [texts].

    Raises:
        ServeError: The server gave no reward.
    """
    try:
        found: Tensor = torch.tensor(_client().rewards(list(queries)), dtype=torch.float32)
    except ServeError as error:
        _logger.error("no reward, the run will stop: %s", error)
        raise
    return {"rewards": found, "scores": found, "extra_logs": {}}


@lru_cache(maxsize=1)
def _client() -> ServeClient:
    """Return one client a process, so that connections are kept."""
    return ServeClient()
