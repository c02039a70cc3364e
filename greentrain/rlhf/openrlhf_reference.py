"""OpenRLHF's PPO with its reference on ``greentrain serve``.

Read against OpenRLHF 0.11.0 (3c3be623) and 0.11.2, not run in OpenRLHF. OpenRLHF has no setting for a remote reference.
This starts its own trainer with one class replaced, in this process alone, and takes its arguments::

    export GREENTRAIN_URL=http://127.0.0.1:8700
    python -m greentrain.rlhf.openrlhf_reference --ref.num_nodes 1 --ref.num_gpus_per_node 1 ...

instead of ``python -m openrlhf.cli.train_ppo_ray``. The actor reserves no GPU; OpenRLHF asks all models at the same
time, so the pass runs beside those of actor and critic unless the models share GPUs (``--train.colocate_*``).
"""

import os
import runpy
from typing import Any

from torch import Tensor

from greentrain.errors import ConfigError
from greentrain.rlhf.batching import padded_logprobs, unpadded
from greentrain.rlhf.client import PATIENCE_VARIABLE, TOKEN_FILE_VARIABLE, URL_VARIABLE, ServeClient
from greentrain.utils.never_raise import warn_experimental


class OffloadReference:
    """What OpenRLHF calls of ``ReferenceModelActor`` (trainer/ray/launcher.py), without a model.

    Experimental: its own calling code was run against it, its training never (docs/status.md).
    """

    def __init__(self, world_size: int, rank: int, master_addr: str | None, master_port: int | None) -> None:
        self._place = (master_addr or "127.0.0.1", master_port or 0)

    def get_master_addr_port(self) -> tuple[str, int]:
        """Return what the other actors of the group are told; none of them connects."""
        return self._place

    def init_model_from_pretrained(self, strategy: Any, pretrain: str) -> None:
        """Find the server. Raises ServeError if it does not answer."""
        warn_experimental("the reference for OpenRLHF", "its own calling code was run against it, its training never")
        self._temperature = float(strategy.args.rollout.temperature)
        self._client = ServeClient()
        self._client.health()

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_output: bool = False,
        packed_seq_lens: list[int] | None = None,
        mm_train_inputs_list: Any = None,
    ) -> Tensor:
        """Return ln p of the response's tokens, [sequences, actions], 0 outside the action mask.

        Raises:
            ServeError: The server gave none.
            ConfigError: There are images.
        """
        if action_mask is None or attention_mask is None or (mm_train_inputs_list and any(mm_train_inputs_list)):
            raise ConfigError("the reference on a server reads tokens with their masks, and no images")
        rows = self._client.logprobs(unpadded(sequences, attention_mask), temperature=self._temperature)
        logprobs = padded_logprobs(rows, attention_mask)
        return logprobs[:, -action_mask.shape[1] :] * action_mask.cpu().float()

    def execute_batch(self, method_name: str, all_data: dict[str, Any], start_idx: int, end_idx: int) -> list[Any]:
        """Call a method once an item, as OpenRLHF's base class does."""
        rows = zip(*(values[start_idx:end_idx] for values in all_data.values()), strict=True)
        return [getattr(self, method_name)(**dict(zip(all_data, row, strict=True))) for row in rows]

    def empty_cache(self) -> None:
        """Do nothing: there is no GPU memory."""


class WithoutGpu:
    """A Ray actor class that gets the client's settings and no GPU, whatever options it is given."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def options(self, **given: Any) -> Any:
        """Return the class with the options, less the GPU."""
        names = (URL_VARIABLE, TOKEN_FILE_VARIABLE, PATIENCE_VARIABLE)
        told = {name: os.environ[name] for name in names if name in os.environ}
        return self._actor.options(**{**given, "num_gpus": 0, "runtime_env": {"env_vars": told}})


def main() -> None:
    """Run ``openrlhf.cli.train_ppo_ray`` with the arguments of this process."""
    import ray
    from openrlhf.trainer.ray import launcher  # type: ignore[import-not-found]

    ServeClient()  # a missing address is an error here, not on a node
    launcher.ReferenceModelActor = WithoutGpu(ray.remote(num_gpus=0)(OffloadReference))
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from greentrain.rlhf import openrlhf_reference  # by its name, as Ray's workers import it

    openrlhf_reference.main()
