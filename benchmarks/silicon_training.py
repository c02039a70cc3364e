"""Slices of what trains: FP8 products, gears, Transformer Engine, AdamW under gamma, the offload device, gpu tests."""

import functools
import importlib
import inspect
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gears_common import in_worker
from benchmarks.silicon_common import TOKENS, Rig, failed

ROOT: Final = Path(__file__).resolve().parents[1]
WIDTH: Final = 2048
BLOCKS: Final = 8
"""Of the transformer: 0.4 B parameters in its blocks."""
METRICS: Final = {"mj_per_token": "mJ/token", "tokens_per_s": "tokens/s", "power_w": "W"}


def fp8(rig: Rig) -> None:
    """Forward and backward of one layer: the ways to multiply in FP8 against BF16, eager and compiled."""
    from greentrain.control.precision.backends import choose_backend
    from greentrain.control.precision.fp8 import Gemm, fp8_linear

    def choose() -> None:
        rig.note(f"precision.backend auto: {choose_backend('auto', rig.device, 'tensorwise').reason}")

    rig.attempt("precision.backend auto", "", choose)
    gemm = Gemm.on(rig.device.type)
    calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    for scaling in ("tensorwise", "rowwise"):
        for public in (True, False) if hasattr(F, "scaled_mm") else (False,):
            name = f"{scaling}, {'F.scaled_mm' if public else 'torch._scaled_mm'}"
            calls[name] = lambda x, w, s=scaling, p=public: fp8_linear(x, w, s, gemm._replace(public=p))  # type: ignore[misc]
    for width in rig.pick((1024, 2048, 4096, 8192), (32,)):
        draw = torch.Generator().manual_seed(0)
        x, w, g = (
            torch.randn(shape, generator=draw).to(rig.device)
            for shape in ((rig.pick(TOKENS, 32), width), (width, width), (rig.pick(TOKENS, 32), width))
        )
        x, w, g = x.bfloat16().requires_grad_(), w.requires_grad_(), g.bfloat16()
        modes: dict[str, Callable[[Any], Any]] = {"eager": lambda call: call}
        if not rig.dry:
            modes["compiled"] = torch.compile
        for mode, change in modes.items():
            plain_ms = _both_ms(rig, change(F.linear), x, w, g)
            rig.row(f"width {width}, {mode}, BF16: forward and backward", "ms", plain_ms)
            for name, call in calls.items():
                what = f"width {width}, {mode}, {name}: forward and backward"
                measure = functools.partial(_product, rig, what, change(call), (x, w, g), plain_ms)
                rig.attempt(what, "ms", measure)
            torch._dynamo.reset()


def _product(rig: Rig, what: str, call: Any, operands: tuple[Tensor, Tensor, Tensor], plain_ms: float) -> None:
    rig.row(what, "ms", _both_ms(rig, call, *operands), BF16=plain_ms)


def _both_ms(rig: Rig, call: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor, g: Tensor) -> float:
    """Return what a product and its gradients take (ms), as in a step: weights in FP32 under autocast's BF16."""

    def both() -> None:
        with torch.autocast(rig.device.type, dtype=torch.bfloat16, cache_enabled=False):
            y = call(x, w)
        torch.autograd.grad(y, (x, w), g)

    return rig.time_ms(both)


def gears_eager(rig: Rig) -> None:
    """Tokens a second and joules a token of a transformer's blocks in every gear."""
    _gears(rig, compiled=False)


def gears_compiled(rig: Rig) -> None:
    """The same with each block compiled."""
    _gears(rig, compiled=True)


def _gears(rig: Rig, *, compiled: bool) -> None:
    sizes: dict[str, Any] = rig.pick(
        {"width": WIDTH, "blocks": BLOCKS}, {"width": 128, "blocks": 1, "batch": 1, "context": 16, "measure_s": 0.05}
    )
    time_s = rig.left_s - 20.0
    where: dict[str, Any] = {
        "device": rig.device.type,
        "folder": str(rig.scratch / "gears"),
        "compiled": compiled and not rig.dry,
    }
    where["meter"] = "nvml"
    words = in_worker("gpu", time_s + 10.0, time_s=min(time_s, rig.pick(time_s, 60.0)), **where, **sizes)
    for note in words.get("notes", []):
        rig.note(note)
    if "error" in words:
        raise RuntimeError(words["error"])
    found: Mapping[str, Any] = words["variants"]
    plain = found.get("plain bf16")
    for name, figures in found.items():
        for key, unit in METRICS.items():
            if not isinstance(figures, Mapping):
                if key == "tokens_per_s":
                    rig.row(name, unit, str(figures))
                continue
            beside = {"plain_bf16": plain.get(key)} if isinstance(plain, Mapping) else {}
            rig.row(f"{name}", unit, figures.get(key, "n/a: no joules"), **beside)


def te(rig: Rig) -> None:
    """Hold the installed Transformer Engine against what the stub of the tests imitates, then run its backend."""
    try:
        importlib.import_module("transformer_engine.pytorch")
    except Exception as error:  # without its CUDA part the package raises RuntimeError
        rig.row("Transformer Engine", "", f"n/a: not here ({failed(error)})")
        return
    recorded = json.loads((ROOT / "tests/control/precision/te_2_20_signatures.json").read_text("utf-8"))["signatures"]
    for name, entry in recorded.items():
        rig.attempt(f"signature of {name}", "", functools.partial(_signature, rig, name, entry))
    from greentrain.control.precision.backends import choose_backend

    backend = choose_backend("transformer_engine", rig.device, "tensorwise")  # with its trial
    rig.note(backend.reason)
    for width in rig.pick((2048, 8192), (32,)):
        layer = nn.Linear(width, width, device=rig.device)
        x = torch.randn(TOKENS - 3, width, device=rig.device, dtype=torch.bfloat16, requires_grad=True)
        g = torch.randn_like(x)
        plain_ms = _both_ms(rig, lambda x, w: F.linear(x, w, layer.bias.to(x.dtype)), x, layer.weight, g)  # noqa: B023
        ours_ms = _both_ms(rig, lambda x, w: backend.linear(layer, x), x, layer.weight, g)  # noqa: B023
        rig.row(f"width {width}, rows that are no multiple of 16: forward and backward", "ms", ours_ms, BF16=plain_ms)
        with torch.autocast(rig.device.type, dtype=torch.bfloat16):
            off = backend.linear(layer, x).float() - F.linear(x.float(), layer.weight, layer.bias)
        rig.row(
            f"width {width}: error of the product", "", float(off.norm() / off.sub(backend.linear(layer, x)).norm())
        )


def _signature(rig: Rig, name: str, entry: Mapping[str, Any]) -> None:
    parts, rest = name.split("."), list[str]()
    while True:
        try:
            found: Any = importlib.import_module(".".join(parts))
            break
        except ImportError:
            rest.insert(0, parts.pop())
    for part in rest:
        found = getattr(found, part)
    has = [parameter for parameter in inspect.signature(found).parameters if parameter != "self"]
    wanted = [parameter["name"] for parameter in entry["parameters"]]
    differ = sorted(set(has) ^ set(wanted))
    rig.row(f"parameters of {name} unlike those recorded", "", float(len(differ)), names=", ".join(differ))


def optimizer(rig: Rig) -> None:
    """A step of AdamW with gamma 1 and 4 beside the same kernel without GreenTrain, on the same state."""
    from greentrain.optim import GearAdamW, adapt

    draw = torch.Generator().manual_seed(0)
    tensors = []
    for shape in [rig.pick((2048, 8192), (8, 32))] * 24:
        tensor = nn.Parameter(torch.randn(shape, generator=draw).to(rig.device))
        tensor.grad = 1e-3 * torch.randn(shape, generator=draw).to(rig.device)
        tensors.append(tensor)
    millions = sum(tensor.numel() for tensor in tensors) / 1e6
    kernels: dict[str, dict[str, Any]] = {"fused": {"fused": True}, "foreach": {"foreach": True}}
    if not rig.dry:
        kernels["fused, capturable"] = {"fused": True, "capturable": True}
    for name, kernel in kernels.items():

        def measure(name: str = name, kernel: dict[str, Any] = kernel) -> None:
            plain = torch.optim.AdamW(tensors, lr=1e-4, **kernel)
            plain_ms = rig.time_ms(plain.step, 2.0)
            for gamma in (1.0, 4.0):
                ours = GearAdamW(tensors, lr=1e-4, gamma=gamma, **kernel)
                ours.state = plain.state  # the same memory for both
                what = f"step of {millions:.0f} M parameters, {name}, GearAdamW, gamma {gamma:g}"
                rig.row(what, "ms", rig.time_ms(ours.step, 2.0), plain=plain_ms)
            adapted = adapt(plain, 4.0)
            what = f"step of {millions:.0f} M parameters, {name}, adapt(AdamW), gamma 4"
            rig.row(what, "ms", rig.time_ms(plain.step, 2.0), plain=plain_ms)
            adapted.remove()

        rig.attempt(f"step of {millions:.0f} M parameters, {name}", "ms", measure)


def offload(rig: Rig) -> None:
    """Log-probabilities of a decoder on the offload device torch: speed, joules, and the CPU's figures."""
    from greentrain.fpga_backend.devices.torch_device import Dtype, TorchDevice
    from greentrain.testing.offload_models import decoder, sequences

    sizes = rig.pick(
        {"layers": 12, "hidden": 1024, "heads": 16, "kv_heads": 8, "inner": 2816, "vocabulary": 32_000}, {}
    )
    longest = rig.pick(512, 64)
    artifact = decoder(max_tokens=longest, **sizes)
    lengths = tuple(longest // (1 + i % 4) for i in range(rig.pick(64, 4)))
    batch, small = (sequences(artifact, lengths=some) for some in (lengths, lengths[:2]))
    cpu = TorchDevice()
    try:
        right = cpu.submit(cpu.load(artifact), small).result(300)
    finally:
        cpu.close()
    dtypes: tuple[Dtype, ...] = ("fp32", "bf16", "fp16")
    for dtype in dtypes:

        def measure(dtype: Dtype = dtype) -> None:
            device = TorchDevice("cpu" if rig.dry else str(rig.device), dtype=dtype)
            try:
                handle = device.load(artifact)
                found = device.submit(handle, small).result(120)
                off = max(float(abs(one - other).max()) for one, other in zip(_rows(found), _rows(right), strict=True))
                rig.row(f"offload to torch, {dtype}: largest difference of ln p from the CPU's fp32", "", off)
                call_ms = rig.time_ms(lambda: device.submit(handle, batch).result(120), 5.0)
                rig.row(f"offload to torch, {dtype}", "tokens/s", 1000 * batch.tokens / call_ms)
                with rig.session(f"offload-{dtype}") as green, green.phase("offload"):
                    for _ in range(max(1, round(rig.pick(10_000, 200) / call_ms))):
                        device.submit(handle, batch).result(120)
                energy_j, seconds = sum(green.totals().by_device.values()), green.totals().phase_s["offload"]
                tokens = seconds * 1000 / call_ms * batch.tokens
                rig.row(f"offload to torch, {dtype}", "mJ/token", 1000 * energy_j / tokens)
            finally:
                device.close()

        rig.attempt(f"offload to torch, {dtype}", "tokens/s", measure)


def _rows(result: Any) -> list[Any]:
    from greentrain.testing.offload_contract import rows_of

    return list(rows_of(result))


def tests(rig: Rig) -> None:
    """Run what is marked gpu, file by file, so that a crash of one loses no other."""
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text("utf-8"))
    report = rig.scratch / "tests.xml"
    flags = ["-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--long"]
    if rig.dry:  # in one process: there is no driver that could crash
        command = [sys.executable, "-m", "pytest", *flags, "--collect-only", *map(str, files)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=rig.left_s, check=False)
        found = re.search(r"(\d+)(?:/\d+)? tests? collected", done.stdout)
        rig.row(
            f"{len(files)} files with tests marked gpu: collected", "tests", float(found[1]) if found else _last(done)
        )
        return
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if rig.left_s < 10:
            rig.row(name, "tests", "n/a: not reached in time")
            continue
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", *flags, name]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=rig.left_s - 5, check=False
            )
        except subprocess.TimeoutExpired:
            rig.row(name, "tests", "failed: out of time")
            continue
        try:
            cases = list(ET.parse(report).iter("testcase"))
        except (OSError, ET.ParseError):
            rig.row(name, "tests", f"failed: {_last(done)}")
            continue
        ended = {case: next((c.tag for c in case if c.tag in ("failure", "error", "skipped")), "") for case in cases}
        bad = [case for case, tag in ended.items() if tag in ("failure", "error")]
        skipped = [case for case, tag in ended.items() if tag == "skipped"]
        passed = len(cases) - len(bad) - len(skipped)
        for key, count in zip(counts, (passed, len(bad), len(skipped)), strict=True):
            counts[key] += count
        rig.row(f"{name}: failed", "tests", float(len(bad)), bar=0.0, passed=float(passed), skipped=float(len(skipped)))
        for case in bad:
            why = next(child.get("message", "") for child in case if child.tag in ("failure", "error"))
            rig.note(f"{name}::{case.get('name')} failed: {why.splitlines()[0][:200] if why else ''}")
        for why in sorted({child.get("message", "") for case in skipped for child in case}):
            rig.note(f"{name} skips: {why[:200]}")
    others = {key: float(count) for key, count in counts.items() if key != "passed"}
    rig.row("all tests marked gpu: passed", "tests", float(counts["passed"]), **others)


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"exit {done.returncode}: {lines[-1][:160] if lines else ''}"
