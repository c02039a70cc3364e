"""Cases step, shift and fp8: what a step costs with gears, right after a shift, and in FP8."""

import functools
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch

from benchmarks.gears_common import SMALL, TINY, TORCHAO, Bench, Row, Training, Value, fastest
from benchmarks.metering_common import median, quantile
from greentrain import GreenSession
from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.noise import NoiseProbe
from recipes.common.model import GPT, Size


def step(bench: Bench) -> list[Row]:
    """Step in a gear, plain and with all that shifting needs, on one model."""
    rows = []
    for gear, size in (("fp32", bench.size), ("bf16", bench.size), ("fp16", TINY)):
        others = ["fp8"] if gear == "bf16" else ["bf16", "fp8"]
        training = Training(size, [gear, *others], scaled=gear == "fp16")
        calls: dict[str, Callable[[], float]] = {"ours": training.geared_step_s}
        calls["plain"] = functools.partial(training.step_s, gear)
        found = fastest(calls, bench.pick(20, 2))
        extra = ", GradScaler" if gear == "fp16" else ""
        rows.append(
            Row(
                case="step",
                what=f"{gear}{extra}, {_parameters(training.model)}, {training.ids.numel()} tokens",
                unit="CPU ms",
                ours=1000 * found["ours"],
                plain=1000 * found["plain"],
                bar=1.01,
            )
        )
    return [*rows, _probe(bench)]


def shift(bench: Bench) -> list[Row]:
    """Shift itself, what hangs on it in a session, and the first step after it."""
    calls = bench.pick(5000, 200)
    box_s = list(_box_shifts_s(calls))
    session_s = list(_session_shifts_s(bench, calls))
    rows = [
        Row(case="shift", what="request() and commit(): median", unit="ms", ours=1000 * median(box_s), bar=1.0),
        Row(case="shift", what="the same: p99", unit="ms", ours=1000 * quantile(box_s, 0.99)),
        Row(
            case="shift",
            what="after optimizer.step() in a session that shifts at every step, journal included: median",
            unit="ms",
            ours=1000 * median(session_s),
            bar=1.0,
        ),
        Row(case="shift", what="the same: p99", unit="ms", ours=1000 * quantile(session_s, 0.99)),
    ]
    size = TINY if bench.quick else SMALL
    for one, other in (("bf16", "fp32"), ("bf16", "fp8")):
        found = _first_steps_s(size, one, other, bench.pick(100, 3))
        for before, after in ((one, other), (other, one)):
            first_s, steady_s = found[f"{after} first"], found[f"{after} steady"]
            rows.append(
                Row(
                    case="shift",
                    what=f"first step after {before} -> {after}, less a steady one of {1000 * steady_s:.1f} ms;"
                    f" {_parameters(GPT(size))}, uncompiled",
                    unit="CPU ms",
                    ours=1000 * (first_s - steady_s),
                    bar=1.0,
                )
            )
    rows.append(_attach(bench))
    return rows


def fp8(bench: Bench) -> list[Row]:
    """Step in FP8 on this CPU, beside BF16: for the record."""
    bf16 = Training(bench.size, ["bf16"])
    rows = []
    for scaling in ("tensorwise", "rowwise"):
        ours = Training(bench.size, ["fp8"], scaling=scaling)
        calls: dict[str, Callable[[], float]] = {"ours": ours.geared_step_s}
        calls["plain"] = functools.partial(bf16.step_s, "bf16")
        peer: Value = "not installed"
        if find_spec(TORCHAO):
            converted = Training(bench.size, ["bf16"])
            convert(converted.model, scaling)
            calls[TORCHAO] = functools.partial(converted.step_s, "bf16")
        found = fastest(calls, bench.pick(10, 1))
        peer = 1000 * found[TORCHAO] if TORCHAO in found else peer
        rows.append(
            Row(
                case="fp8",
                what=f"FP8 {scaling} beside plain BF16, {_parameters(bf16.model)}, {bf16.ids.numel()} tokens",
                unit="CPU ms",
                ours=1000 * found["ours"],
                plain=1000 * found["plain"],
                peers={TORCHAO: peer},
            )
        )
    return rows


def convert(model: torch.nn.Module, scaling: str) -> None:
    """Replace the linear layers of a model by torchao's."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # type: ignore[import-untyped]

    config = Float8LinearConfig.from_recipe_name(scaling)
    convert_to_float8_training(model, config=config)


def _probe(bench: Bench) -> Row:
    """What one measurement of the gears' gradient noise takes."""
    training = Training(bench.size, ["bf16", "fp8"])
    what = f"one noise probe, in steps of BF16, {_parameters(training.model)}"
    ours: Value = "n/a"
    with training.geared() as gears:
        assert gears.recorder is not None
        gears.probe = NoiseProbe(gears.box, gears.recorder, every=1, max_share=1.0)  # as often as it can
        plain_s: list[float] = []
        probes_s: list[float] = []
        for _ in range(bench.pick(40, 16)):
            before = gears.noise
            spent_s = training.step_s()
            (plain_s if gears.noise is before else probes_s).append(spent_s)
        if probes_s:
            steps = (min(probes_s) - min(plain_s)) / min(plain_s)
            ours = steps
            what += f"; it is held at 0.5 % of the time, so here it comes once in {steps / 0.005:.0f} steps at most"
    return Row(case="step", what=what, unit="steps", ours=ours)


def _box_shifts_s(calls: int) -> Iterator[float]:
    box = GearBox(PrecisionConfig(gears=("bf16", "fp32", "fp8"), min_features=64))
    box.attach(GPT(SMALL))
    for i in range(calls):
        gear = box.gears[i % 3]
        before_s = time.perf_counter()
        box.request(gear)
        box.commit()
        yield time.perf_counter() - before_s
    box.detach()


def _session_shifts_s(bench: Bench, calls: int) -> Iterator[float]:
    schedule = [(i, "fp8" if i % 2 else "bf16") for i in range(calls)]
    config = {
        "run": {"dir": str(bench.scratch / "runs"), "report": False, "live": False},
        "power": {"meters": ["null"]},
        "precision": {"gears": ["bf16", "fp8"], "min_features": 64, "probe_every": 0},
        "policy": {"name": "scripted", "schedule": schedule},
    }
    model = GPT(SMALL)
    with GreenSession(config) as green:
        green.watch(model, torch.optim.AdamW(model.parameters()))
        assert green.gears is not None
        for _ in range(calls):
            before_s = time.perf_counter()
            green.gears.boundary()
            yield time.perf_counter() - before_s
            green.step()


def _first_steps_s(size: Size, one: str, other: str, repeats: int) -> dict[str, float]:
    """Return the fastest first and second step after shifts to and fro."""
    training = Training(size, [one, other], batch=4)  # a short step: its noise is far below the bar
    with training.geared() as gears:

        def in_gear(gear: str) -> float:
            gears.box.request(gear)
            gears.box.commit()
            return training.step_s()

        def after(before: str, gear: str) -> float:
            in_gear(before)
            in_gear(before)
            return in_gear(gear)

        def steady(gear: str) -> float:
            in_gear(gear)
            in_gear(gear)
            return in_gear(gear)

        calls = {
            f"{other} first": functools.partial(after, one, other),
            f"{other} steady": functools.partial(steady, other),
            f"{one} first": functools.partial(after, other, one),
            f"{one} steady": functools.partial(steady, one),
        }
        # The policy would go back at each optimizer step: shifts here are the box's own.
        gears.release()
        return fastest(calls, repeats)


def _attach(bench: Bench) -> Row:
    model = GPT(bench.size)

    def attach_s() -> float:
        box = GearBox(PrecisionConfig(gears=("bf16", "fp8"), min_features=64))
        before_s = time.process_time()
        box.attach(model)
        spent_s = time.process_time() - before_s
        box.detach()
        return spent_s

    def convert_s() -> float:
        fresh = GPT(bench.size)
        before_s = time.process_time()
        convert(fresh, "tensorwise")
        return time.process_time() - before_s

    calls = {"ours": attach_s} | ({TORCHAO: convert_s} if find_spec(TORCHAO) else {})
    found = fastest(calls, bench.pick(20, 2))
    return Row(
        case="shift",
        what=f"once, before training: gears for {_parameters(model)}, trial of FP8 included / conversion of the model",
        unit="CPU ms",
        ours=1000 * found["ours"],
        peers={TORCHAO: 1000 * found[TORCHAO] if TORCHAO in found else "not installed"},
    )


def _parameters(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.2g} M parameters"
