"""The gears of a session: who decides, when it takes effect, and what is told about it.

::

    optimizer.step() --post hook--> boundary: count the step, ask the policy, shift --> the next forward

so a shift never falls into a gradient accumulation window, and no step but the one that shifts pays for it.

A policy wants a gear from step to step (:class:`StaticPolicy` one gear for the whole run, or a list of steps and
gears), and :class:`GearLoop` says what is allowed instead.
"""

import bisect
import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from greentrain.config.schema import GreenConfig, PolicyConfig, PrecisionConfig
from greentrain.control.precision.gearbox import GearBox, check_gears, is_compiled
from greentrain.control.precision.guard import QualityGuard
from greentrain.control.precision.noise import Noise, NoiseProbe
from greentrain.control.precision.recorder import CallRecorder
from greentrain.control.profiling.distributed import ProfilingRun
from greentrain.errors import ConfigError
from greentrain.optim import PAPER_GAMMA, adapt
from greentrain.optim.adapt import unwrap
from greentrain.types import Decision, Gear, Observation, Policy
from greentrain.utils.never_raise import never_raises, warn

PRECISE_FIRST = (Gear.BF16, Gear.FP32, Gear.FP16)
"""What stands in for 8 and 4 bits where they are not allowed: the gear around their products first."""


class GearLoop:
    """Asks a policy and keeps what it wants within what is allowed.

    Args:
        policy: The policy.
        gears: Gears of the run.
        fp8_max_share: Largest share of steps in FP8, MXFP8 and NVFP4 together.
    """

    def __init__(self, policy: Policy, gears: Sequence[Gear], fp8_max_share: float = 1.0) -> None:
        self._policy = policy
        self._gears = tuple(gears)
        self._fp8_max_share = fp8_max_share

    def decide(self, seen: Observation, done: Mapping[Gear, int], vetoes: Mapping[Gear, str]) -> Decision:
        """Return the decision for the coming step.

        Args:
            seen: Observation of all that the policy may know.
            done: Steps done by gear.
            vetoes: Gears that must not be used now, and why.
        """
        wanted = self._policy.decide(seen)
        low = sum(steps for gear, steps in done.items() if gear.is_low)
        spent = self._fp8_max_share < 1.0 and low + 1 > self._fp8_max_share * (sum(done.values()) + 1)
        why = vetoes.get(wanted.gear, "")
        if not why and wanted.gear.is_low and spent:
            why = f"{wanted.gear.upper()} has had its share of {self._fp8_max_share:.0%} of the steps"
        if not why:
            return wanted
        order = PRECISE_FIRST + (() if spent else (Gear.MXFP8, Gear.FP8, Gear.NVFP4))
        allowed = [gear for gear in order if gear in self._gears and gear not in vetoes]
        return Decision(gear=allowed[0], reason=why) if allowed else wanted


class ScriptedPolicy:
    """Gears by a schedule.

    Args:
        schedule: Pairs of an optimizer step, counted from 0 and increasing, and the gear from there on.
        reason: Why.
    """

    def __init__(self, schedule: Sequence[tuple[int, Gear]], reason: str = "schedule") -> None:
        self._steps = [step for step, _ in schedule]
        self._decisions = [Decision(gear=gear, reason=reason) for _, gear in schedule]

    def decide(self, seen: Observation) -> Decision:
        """Return the gear of the last entry at or before the coming step."""
        return self._decisions[max(0, bisect.bisect_right(self._steps, seen.step) - 1)]


class StaticPolicy(ScriptedPolicy):
    """One gear from the first step to the last.

    Args:
        gear: The gear.
        reason: Why.
    """

    def __init__(self, gear: Gear, reason: str = "static") -> None:
        super().__init__([(0, gear)], reason)


def open_policy(policy: PolicyConfig, precision: PrecisionConfig) -> Policy:
    """Return the policy that a configuration names."""
    if policy.name == "scripted":
        return ScriptedPolicy([(step, Gear(gear)) for step, gear in policy.schedule])
    return StaticPolicy(Gear(policy.gear or precision.gears[0]))


log = logging.getLogger(__name__)

GAMMA_DIGITS = 2
"""A measured gamma is rounded: torchao compiles AdamW anew for every value, and its error is larger than that."""


class Gears:
    """Shifts one model by a policy.

    Args:
        config: Sections ``precision`` and ``policy``.
        tell: Called after a shift with the gear before, the decision and the steps done.
        unused: Called once, after the first step of a model, with why it has not run in its gears; None is told then.
    """

    def __init__(
        self,
        config: GreenConfig,
        tell: Callable[[Gear, Decision, int], None],
        unused: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._config = config.precision
        self._tell, self._say_unused = tell, unused
        self._checked = self._unused = False
        self.box = GearBox(config.precision)
        self.steps = 0
        """Optimizer steps of the run, earlier parts included."""
        self.done: dict[Gear, int] = dict.fromkeys(self.box.gears, 0)
        """The same by gear."""
        self.vetoes: dict[Gear, str] = {}
        """Gears whose quality does not do now, and why."""
        self.barred: Mapping[Gear, str] = {}
        """Gears that somebody else rules out, and why."""
        self._loop = GearLoop(open_policy(config.policy, config.precision), self.box.gears, self._config.fp8_max_share)
        self._undo: list[Callable[[], None]] = []
        self.recorder: CallRecorder | None = None
        """What gives the noise probe a batch of training; None before training starts, or without a probe."""
        self.probe: NoiseProbe | None = None
        self.noise: Noise | None = None
        """What the noise probe has found last."""
        self._guards = {gear: QualityGuard(gear) for gear in self.box.low}
        self._saved: Mapping[str, Any] = {}
        self._outer: nn.Module | None = None
        self._scaler: Any = None
        self._asked: GearLoop | None = None
        self.measuring: ProfilingRun | None = None
        """The profiling phase, while it runs: it decides in place of the policy."""
        self._bound: list[Any] = []
        self._counted = False

    def attach(
        self, model: nn.Module, *, scaler: Any, device: torch.device | None = None, wrap_forward: bool = True
    ) -> None:
        """Give a model its gears and shift to that of the first step.

        Args:
            model: The model, before a framework replaces its forward.
            scaler: The GradScaler in use, or True where a framework scales the loss itself; None: there is none.
            device: Device that the model will run on; None: that of its parameters.
            wrap_forward: False where the framework enters ``box.context`` itself.

        Raises:
            ConfigError: A gear cannot work here; says why.
        """
        if Gear.FP16 in self.box.gears and not scaler:
            raise ConfigError(
                "precision.gears holds fp16, whose small gradients vanish without loss scaling: train with a"
                " torch.amp.GradScaler from the start (the framework's fp16 mode, or watch(..., scaler=scaler)); it"
                " leaves the other gears' numbers as they are"
            )
        self.box.attach(model, device=device, wrap_forward=wrap_forward)
        self._outer, self._scaler = model, scaler
        self._checked = self._unused = False
        self._decide()

    def check(self, model: nn.Module) -> None:
        """Check the gears against the wrappers that a framework has put around the model since ``attach``.

        Raises:
            ConfigError: A gear cannot work there; says why.
        """
        if self.box.model is not None:
            device = next((p.device for p in model.parameters()), torch.device("cpu"))
            check_gears(model, self.box.gears, device)
            self._outer = model

    def restart(self) -> None:
        """Count from 0: a new run begins."""
        self.steps, self.noise, self._saved, self.vetoes = 0, None, {}, {}
        self._guards = {gear: QualityGuard(gear) for gear in self.box.low}
        self.box.neutral = False
        self.done = dict.fromkeys(self.box.gears, 0)
        if self.probe is not None:  # steps before start() were not the run's
            self.probe.restart()
        self._decide()

    def _watch_noise(self) -> None:
        """Start the noise probe, when the model is in all its wrappers."""
        every = self._config.probe_every
        self._warn_of_eager()
        if self.probe is None and every and self.box.low and self._outer is not None:
            scale = getattr(self._scaler, "get_scale", lambda: 1.0)
            self.recorder = CallRecorder(self._outer, scale)
            self.probe = NoiseProbe(self.box, self.recorder, every)
            if self._saved:
                self.probe.load_state_dict(self._saved)
                self.noise = self.probe.noise

    def _warn_of_eager(self) -> None:
        outer = self._outer
        if outer is None or not self.box.low or next(outer.parameters()).device.type != "cuda":
            return
        own = self.box.backend is not None and self.box.backend.name != "transformer_engine"
        if own and not is_compiled(outer):
            warn(
                "8 bits without torch.compile are slower than BF16 on a GPU (FP8 four times in nanochat's log, rowwise,"
                " H100): compile the model or its blocks"
            )

    def bind(self, optimizer: Any, *, counts: bool = True) -> None:
        """Count an optimizer's steps and let AdamW take the gear into account.

        Args:
            optimizer: A torch optimizer, or a framework's wrapper around one.
            counts: Whether its steps are the run's, unless an optimizer was bound before; False where something else
                calls :meth:`boundary`.

        Raises:
            ConfigError: gamma is asked for and this optimizer is no Adam.
        """
        optimizer = unwrap(optimizer)
        if any(optimizer is known for known in self._bound):
            return
        self._bound.append(optimizer)
        self._watch_noise()
        if self.box.low and self._config.gamma != 1.0:
            self._adapt(optimizer)
        if counts and not self._counted:
            self._counted = True
            disable: Any = torch.compiler.disable  # dynamo would follow a compiled step into the policy
            self._undo.append(optimizer.register_step_post_hook(disable(self.boundary)).remove)

    def _adapt(self, optimizer: Optimizer) -> None:
        try:
            adapted = adapt(optimizer, self.gamma, decay=self._config.decay)
        except ConfigError as error:
            if self._config.gamma != "measured":
                raise
            log.info("gamma stays 1: %s", error)  # nobody asked for it by name
        else:
            self._undo.append(adapted.remove)

    @never_raises
    def boundary(self, *_: Any) -> None:
        """Note that an optimizer step is done, and shift if the policy wants to."""
        if not self._checked:
            self._check_use()
        # This runs in the optimizer's post-step hook. The gradients of the step are used up and no forward of the next
        # one has begun, so here alone a gear can change without a forward in one gear and its backward in another; and
        # a gradient accumulation window, which has no optimizer step inside, is never cut in two.
        self.steps += 1
        self.done[self.box.gear] += not self.box.neutral
        if self.measuring is not None:
            self.measuring.boundary()
            if self.measuring.done:
                self.measuring = None
        elif self.probe is not None and not self.box.neutral:
            self._listen(self.probe.step(self.steps))
        self._decide()

    def _check_use(self) -> None:
        """After a model's first step, say where it is not what was trained: gears that never ran would be booked."""
        self._checked, model = True, self._outer
        if self.box.model is None or model is None or not self._bound:
            return
        own = {id(p) for p in model.parameters()}
        held = [p for optimizer in self._bound for group in optimizer.param_groups for p in group["params"]]
        graded = any(p.grad is not None or getattr(p, "main_grad", None) is not None for p in model.parameters())
        name = type(self.box.model).__name__
        why = ""
        # An engine's optimizer, which does not count steps, and master weights in FP32 hold copies of the parameters.
        if self._counted and held and not graded and not any(id(p) in own for p in held):
            why = f"the optimizer that stepped holds no parameter of the {name} that has the gears"
        elif not self.box.entered and not (is_compiled(model) or _has_graphs()):
            why = f"no training forward went through the {name} that has the gears"
        if why:
            self._unused = True
            self._say_unused(f"{why}; its steps are booked to no gear from here on: watch the model that trains")

    def shift(self, gear: str) -> None:
        """Use a gear from the next optimizer step on, in place of the policy.

        Raises:
            ConfigError: It is not among the gears of the run.
        """
        self.box.request(gear)
        self._loop, self._asked = self._static(Gear(gear), "static"), None

    def follow(self, gear: Gear, reason: str) -> None:
        """Use a gear from now on: a step has just ended, and a plan asks for it."""
        self._loop = self._static(gear, reason)
        self._decide()

    def ask(self, gear: Gear | None, reason: str) -> None:
        """Use a gear in place of the policy's from now on, as somebody asks for it: a step has just ended.

        Args:
            gear: The gear; None: the policy decides again.
            reason: Why.
        """
        self._asked = None if gear is None else self._static(gear, reason)
        self._decide()

    def _static(self, gear: Gear, reason: str) -> GearLoop:
        return GearLoop(StaticPolicy(gear, reason), self.box.gears, self._config.fp8_max_share)

    def prewarm(self, run: Callable[[], Any]) -> None:
        """Run something once in every gear, so that compiling does not fall into the training.

        Args:
            run: Forward and backward of one micro-batch; clear the gradients afterwards.
        """
        for gear in self.box.gears:
            with self.box.at(gear):
                run()

    def measure(self, phase: ProfilingRun | None) -> None:
        """Let a profiling phase take the coming steps; None gives them back to the policy."""
        self.measuring = phase
        self._decide()

    def gamma(self) -> float:
        """Return by how much AdamW has to slow down in the gear of this step."""
        asked = self._config.gamma
        if not self.box.gear.is_low or self.box.neutral:
            return 1.0
        if isinstance(asked, float):
            return asked
        if asked == "paper":
            return PAPER_GAMMA
        return 1.0 if self.noise is None else round(self.noise.gamma_in(self.box.gear), GAMMA_DIGITS)

    def metrics(self) -> dict[str, float]:
        """Return figures for a logger; what was not measured is left out."""
        out = {}
        if self.steps:
            for gear in self.box.low:
                out[f"green/{gear}_share"] = self.done[gear] / max(1, sum(self.done.values()))
        if self.noise is not None:
            out["green/gamma"] = self.noise.gamma
            if self.noise.sigma_ratio is not None:
                out["green/sigma_ratio"] = self.noise.sigma_ratio
        return out

    def release(self) -> None:
        """Take the hooks off the optimizers; the model keeps its gears. Idempotent."""
        self._counted = False
        self._bound.clear()
        if self.recorder is not None and self.probe is not None:
            self.recorder.clear()
            self._saved = self.probe.state_dict()
            self.recorder = self.probe = None
        while self._undo:
            self._undo.pop()()

    def detach(self) -> None:
        """Make model and optimizers what they were. Idempotent."""
        self.release()
        self.box.detach()
        self._outer = None

    def describe(self) -> dict[str, Any]:
        """Return what run.json says about the layers."""
        backend = self.box.backend
        return {
            "gear_backend": "" if backend is None else f"{backend.name}: {backend.reason}",
            "layers": [dataclasses.asdict(layer) for layer in self.box.plan],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, in plain JSON types."""
        return {**self.box.state_dict(), "steps": self.steps, "done": {str(g): n for g, n in self.done.items()}} | {
            "probe": self._saved if self.probe is None else self.probe.state_dict(),
            "guard": {str(gear): guard.state_dict() for gear, guard in self._guards.items()},
            "vetoes": {str(gear): why for gear, why in self.vetoes.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        self.box.load_state_dict(state)
        self.steps = int(state.get("steps", 0))
        done = state.get("done", {})
        self.done = {gear: int(done.get(str(gear), 0)) for gear in self.box.gears}
        self._saved = state.get("probe") or {}
        if self.probe is not None and self._saved:
            self.probe.load_state_dict(self._saved)
        minds = state.get("guard") or {}
        for gear, guard in self._guards.items():  # one without a gear's name is of 0.2, which had FP8 alone
            guard.load_state_dict(minds if "left" in minds and gear is Gear.FP8 else minds.get(str(gear)) or {})
        self.vetoes = {Gear(gear): why for gear, why in (state.get("vetoes") or {}).items()}
        self._decide()

    def _listen(self, noise: Noise | None) -> None:
        """Take in what a probe has found, or that there will be none any more."""
        if noise is not None:
            self.noise = noise
            judged = {gear: guard.judge(noise) for gear, guard in self._guards.items()}
            self.vetoes = {gear: why for gear, why in judged.items() if why is not None}
        elif self.probe is not None and self.probe.problem:
            log.info("gradient noise is not measured any more: %s", self.probe.problem)
            self._saved, self.probe, self.recorder = self.probe.state_dict(), None, None

    def _decide(self) -> None:
        before = self.box.gear
        if self.measuring is not None:
            decision = Decision(gear=self.measuring.gear, reason="profiling")
        else:
            decision = (self._asked or self._loop).decide(
                Observation(step=self.steps, gear=before), self.done, {**self.barred, **self.vetoes}
            )
        self.box.request(decision.gear)
        if self.box.commit() and not self._unused:
            self._tell(before, decision, self.steps)


def _has_graphs() -> bool:
    """Return whether dynamo has compiled anything: a training step as a function may hold the model's forward."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])
