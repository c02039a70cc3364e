"""Asynchronous GRPO: rollouts wait for their scores while others are generated and trained on, and a log says which.

The log of a rank, ``OUTPUT_DIR/rollouts/rank-00000.jsonl``, has a line ``made`` for each generation (tokens, their
log-probabilities, the optimizer steps of the weights that made them) and a line ``trained`` where it was trained on.
With it a run is resumed, and replayed: what was scored in time then is in the log, not in how fast a device is now.
"""

import base64
import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import version
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from transformers import TrainerCallback

from greentrain.errors import ConfigError
from greentrain.ledger.journal import Journal, open_regular, rank_path
from greentrain.rlhf.stream import Stream
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn

with try_import("trl") as _imports:
    from trl.models.utils import disable_gradient_checkpointing
    from trl.trainer.utils import pad
_imports.check()

FORMAT: Final = 1
BOUNDS: Final[Mapping[str, tuple[str, float]]] = {
    "tis": ("token_truncate", 2.0),  # verl, docs/algo/rollout_corr.md: rollout_is=token, rollout_is_threshold=2.0
    "areal": ("token_mask", 5.0),  # AReaL (arXiv:2505.24298), examples: behav_imp_weight_cap=5, tokens above left out
    "vtrace": ("token_truncate", 1.0),  # IMPALA (arXiv:1802.01561), 4.1: rho = 1, as in torchrl 0.14.1's VTrace
    "mis": ("sequence_mask", 3.0),  # TRL 1.16, GRPOConfig: vllm_importance_sampling_mode and _clip_max, its defaults
}
"""Published bounds of the importance weight (weights trained on) / (weights that made it), as TRL's mode and C_max."""
_SETTINGS: Final = (
    "seed", "max_steps", "num_train_epochs", "learning_rate", "lr_scheduler_type", "per_device_train_batch_size",
    "gradient_accumulation_steps", "num_generations", "steps_per_generation", "num_iterations",
    "max_completion_length", "temperature", "beta", "loss_type", "epsilon", "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
)  # fmt: skip
"""What a log is of, but for models and libraries, by name in GRPOConfig."""


def weights_digest(model: torch.nn.Module) -> str:
    """Return the SHA-256 over all parameters by name; where they are sharded, of this rank's."""
    found = hashlib.sha256()
    for name, value in sorted(model.named_parameters()):
        local: Any = getattr(value, "to_local", lambda value=value: value)()
        found.update(name.encode() + local.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a rank's log, each with ``at`` and ``end`` (bytes); tokens are read by :func:`rollouts`.

    Raises:
        ConfigError: There is none, or it is none; a torn last line is left out.
    """
    found: list[dict[str, Any]] = []
    try:
        with open_regular(path) as file:
            while line := file.readline():
                if not line.endswith(b"\n"):
                    break
                record = json.loads(line)
                slim = {k: v for k, v in record.items() if k not in ("completions", "logprobs")}
                found.append(slim | {"at": file.tell() - len(line), "end": file.tell()})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no log of rollouts ({error}): give the folder rollouts of a run") from error
    if not found or found[0].get("kind") != "open" or found[0].get("format") != FORMAT:
        raise ConfigError(f"{path} does not begin as a log of rollouts of format {FORMAT}: give that of another run")
    made = [one["generation"] for one in found if one["kind"] == "made"]
    if made != list(range(found[0]["first"], found[0]["first"] + len(made))):
        raise ConfigError(f"{path} has a gap in its generations: the disk refused some; it cannot be gone on with")
    return found


class _Made(NamedTuple):
    generation: int
    step: int  # of the weights that made it
    rows: list[dict[str, Any]]
    output: tuple[Any, ...]  # of TRL's _generate, with the log-probabilities of the weights that made it
    streams: tuple[Stream | None, ...]  # of the reference, and of each reward


def _logprobs(trainer: Any, prompt_ids: list[list[int]], completion_ids: list[list[int]]) -> list[list[float]]:
    """Return the policy's log-probabilities of completions, padded as TRL pads: the same of the same weights."""
    parts = []
    for rows, side in ((prompt_ids, "left"), (completion_ids, "right")):
        tensors = [torch.tensor(row) for row in rows]
        for some, fill in ((tensors, trainer._tokenizer.pad_token_id), ([torch.ones_like(t) for t in tensors], 0)):
            parts.append(pad(some, fill, side, trainer.pad_to_multiple_of).to(trainer.accelerator.device))
    ids, mask, at_once = torch.cat(parts[::2], 1), torch.cat(parts[1::2], 1), trainer.args.per_device_train_batch_size
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        found = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, parts[2].size(1), at_once)[0]
    return [row[: len(ids)].tolist() for row, ids in zip(found, completion_ids, strict=True)]


class Ahead(TrainerCallback):
    """What is generated and not trained on, oldest first, of one rank.

    A generation is made while the oldest one has no scores, and fewer than ``staleness`` others are before it: it is
    then trained on at most so many generations later than on-policy training would. All ranks do the same.

    Args:
        trainer: An offloading GRPOTrainer.
        staleness: Most generations between those that made a rollout and those trained on it; of a replay the log's.
        replay: Folder of a log to follow in the place of generating; None: generate.
        generate: TRL's generation, which also begins with the passes.

    Raises:
        ConfigError: The log is of another run.
    """

    def __init__(
        self, trainer: Any, staleness: int, replay: str | Path | None, generate: Callable[[list[Any]], tuple[Any, ...]]
    ) -> None:
        self._trainer, self._generate, self.staleness = trainer, generate, staleness
        self._process = trainer.accelerator.process_index
        self._pending: deque[_Made] = deque()
        self._next = 0
        self._record: dict[str, Any] | None = None
        self._read: Path | None = None
        self._events: deque[dict[str, Any]] | None = None
        self._journal: Journal | None = None
        self._order: tuple[int, list[int]] = (-1, [])
        self.current: _Made | None = None
        self._facts = {"model (SHA-256)": weights_digest(trainer.accelerator.unwrap_model(trainer.model))}
        for kind, one in trainer.engine.passes.items():
            self._facts[f"{kind} pass (SHA-256)"] = one.device.handle.digest
        self._facts |= {name: str(getattr(trainer.args, name)) for name in _SETTINGS}
        self._facts |= {"ranks": str(trainer.accelerator.num_processes)}
        self._facts |= {name: version(name) for name in ("trl", "torch")}
        self._replayed: list[dict[str, Any]] = []
        if replay is not None:
            self._read = rank_path(Path(replay), self._process)
            self._replayed = read_log(self._read)
            self.staleness = self._replayed[0]["staleness"]
            for change in self._changes(self._replayed):
                raise ConfigError(
                    f"{self._read} was logged with {change}: a log gives its weights with its own settings alone: set "
                    "it so, or leave replay away"
                )

    @property
    def due(self) -> bool:
        """True where TRL would generate now."""
        own = self._trainer
        return bool(own.model.training) and (own._step % self._every == 0 or own._buffered_inputs is None)

    def next(self) -> list[dict[str, Any]]:
        """Return the rows of the generation to train on, after making what is to be made before."""
        if self._journal is None and self._events is None:
            self._begin()
        if self._events is not None:
            while (record := self._events.popleft())["kind"] == "made":
                self._make(record)
        else:
            while len(self._pending) < min(self.staleness + 1, self._left()) and not self._ready():
                self._make()
        self.current = made = self._pending.popleft()
        step = self._trainer.state.global_step
        self._note("trained", generation=made.generation, step=step)
        self._trainer._metrics["train"]["offload/staleness"].append(float(step - made.step))
        torch.manual_seed(self._seed(made.generation, making=False))
        self._trainer.take_streams(made.streams)
        return made.rows

    def rollouts(self, prompt_ids: Any, generate: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Return the completions of prompts and their log-probabilities: the log's, or new ones."""
        digest, record = hashlib.sha256(json.dumps(prompt_ids).encode()).hexdigest(), self._record
        if record is None:
            self._record = {"prompts": digest}
            return generate()
        if record["prompts"] != digest:
            raise ConfigError(
                f"generation {record['generation']} of {self._read} is of other prompts than this run's: give it the "
                "data set, tokenizer and chat template that it was logged with"
            )
        assert self._read is not None
        with open_regular(self._read) as file:
            file.seek(record["at"])
            whole = json.loads(file.readline())
        flat, rows = np.frombuffer(base64.b64decode(whole["logprobs"]), "<f4"), whole["completions"]
        return rows, [row.tolist() for row in np.split(flat, np.cumsum([len(row) for row in rows])[:-1])]

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """Write what waits: a checkpoint without its log could not be resumed."""
        if self._journal is not None and not self._journal.flush(60.0):
            warn(f"{self._journal.path} was not written within 60 s: from this checkpoint the run cannot be resumed")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the SHA-256 of the weights, or compare it with the log's."""
        found = weights_digest(self._trainer.accelerator.unwrap_model(self._trainer.model))
        self._note("ended", step=state.global_step, weights=found)
        if self._journal is not None:
            self._journal.close(60.0)
        for one in self._events or ():
            if one["kind"] == "ended" and one["step"] == state.global_step and one["weights"] != found:
                warn(
                    f"the replay ended with weights {found[:12]}, and the log {self._read} with {one['weights'][:12]}: "
                    "something gives other bits, such as the number of threads"
                )
        self._journal = self._events = None

    def _changes(self, records: list[dict[str, Any]]) -> list[str]:
        """Return what is another in this run than where a log begins."""
        logged = records[0]["facts"]
        return [f"{k}={logged.get(k)}, and this run has {v}" for k, v in self._facts.items() if logged.get(k) != v]

    def _begin(self) -> None:
        """Go on where the training is: at its beginning, or at a checkpoint."""
        trainer, step = self._trainer, self._trainer.state.global_step
        self._pending.clear()
        path = rank_path(Path(trainer.args.output_dir) / "rollouts", self._process)
        resumes = not self._replayed and step > 0 and path.exists()
        records = read_log(path) if resumes else self._replayed
        before = [one for one in records[1:] if one["step"] < step]
        after = list(takewhile(lambda one: one["kind"] != "changed", records[1 + len(before) :]))
        done = {one["generation"] for one in before if one["kind"] == "trained"}
        made = [one for one in before if one["kind"] == "made"]
        self._next = records[0]["first"] if records else step * trainer.args.gradient_accumulation_steps // self._every
        if self._replayed:
            there = sum(one["kind"] == "trained" for one in after)
            if there < self._left():
                raise ConfigError(
                    f"{self._read} has {there} generations to train on from step {step}, and max_steps="
                    f"{trainer.state.max_steps} needs {self._left()}: replay a log that is long enough"
                )
            self._events = deque(after)
        elif resumes:
            with path.open("r+b") as file:
                file.truncate((before or records[:1])[-1]["end"])
            self._read, self._journal = path, Journal(path)
            if changes := self._changes(records):
                self._note("changed", step=step)
                warn(f"{path} goes on, with {changes[0]}: it can be replayed up to step {step}, and not from there")
        else:
            if path.exists():
                path.replace(path.with_suffix(".jsonl.old"))
            self._journal = Journal(path)
            self._note("open", format=FORMAT, first=self._next, staleness=self.staleness, facts=self._facts)
        seen = trainer.state.num_input_tokens_seen
        for one in made:
            self._next = one["generation"]
            if self._next not in done:
                self._make(one)
        self._next = made[-1]["generation"] + 1 if made else self._next
        trainer.state.num_input_tokens_seen = seen

    @property
    def _every(self) -> int:
        """Micro-batches from one generation to the next."""
        return int(self._trainer.args.steps_per_generation * self._trainer.num_iterations)

    def _left(self) -> int:
        """Return how many generations are still trained on."""
        steps: int = self._trainer.state.max_steps - self._trainer.state.global_step
        return -(-steps * int(self._trainer.args.gradient_accumulation_steps) // self._every)

    def _ready(self) -> bool:
        """Return True if the oldest generation has its scores, on all ranks."""
        mine = bool(self._pending) and not any(one.under_way for one in self._pending[0].streams if one is not None)
        accelerator = self._trainer.accelerator
        asked = torch.tensor([int(mine)], device=accelerator.device)
        return mine if accelerator.num_processes == 1 else bool(accelerator.gather(asked).min())

    def _make(self, record: dict[str, Any] | None = None) -> None:
        generation, trainer = self._next, self._trainer
        rows = self._rows(generation)
        torch.manual_seed(self._seed(generation, making=True))
        self._record = record
        output = list(self._generate([row["prompt"] for row in rows]))
        trainer.refer(*output[:2])
        if output[4] is None:
            output[4] = _logprobs(trainer, *output[:2])
        step = trainer.state.global_step if record is None else record["step"]
        self._pending.append(_Made(generation, step, rows, tuple(output), trainer.take_streams(None)))
        self._next += 1
        if record is None and self._record is not None:
            flat = np.concatenate([np.asarray(row, "<f4") for row in output[4]])
            coded = base64.b64encode(flat.tobytes()).decode()
            about = {"prompts": self._record["prompts"], "completions": output[1], "logprobs": coded}
            self._note("made", generation=generation, step=step, **about)

    def _note(self, kind: str, **facts: Any) -> None:
        if self._journal is not None:
            self._journal.append({"kind": kind, **facts})

    def _seed(self, generation: int, *, making: bool) -> int:
        """Return a seed: evaluations and logged generations then change nothing of what comes after them."""
        mixed = [self._trainer.args.seed, self._process, generation, int(making)]
        return int(np.random.SeedSequence(mixed).generate_state(1)[0])

    def _rows(self, generation: int) -> list[dict[str, Any]]:
        """Return this rank's rows of a generation, in the order in which TRL's data loader has them."""
        trainer = self._trainer
        whole = trainer.args.generation_batch_size
        part = whole // trainer.accelerator.num_processes
        epoch, at = divmod(generation, max(1, len(trainer._get_train_sampler()) // (whole * self._every)))
        if self._order[0] != epoch:
            sampler = trainer._get_train_sampler()
            self._order = epoch, [list(sampler) for _ in range(epoch + 1)][-1]
        begin = at * whole * self._every + self._process * part
        return [trainer.train_dataset[i] for i in islice(self._order[1], begin, begin + part)]
