"""What ``greentrain doctor`` says about power limits: which right is there, what is set, what a dead job left."""

import os
from collections.abc import Sequence
from pathlib import Path

from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.driver import refusal
from greentrain.control.actuators.gpu_knobs import GpuKnobs
from greentrain.control.actuators.own_gpus import writable
from greentrain.errors import MeterError
from greentrain.power.claims import claims_dir
from greentrain.power.nvml_devices import list_gpus, open_nvml


def survey_caps(folder: Path | None = None) -> Sequence[str]:
    """Return one sentence a GPU, and what else matters. Never raises.

    The right is tried by setting the limit that is set already, which changes nothing.

    Args:
        folder: Of the records; None: that of the device claims.
    """
    place = claims_dir() if folder is None else folder
    try:
        nvml = open_nvml()
    except MeterError as error:
        return [f"power limits and clocks: cannot be set, {error}"]
    try:
        lines = [_line(GpuKnobs(nvml, gpu)) for gpu in list_gpus(nvml) if gpu.handle is not None]
        lines += _records(place)
    except Exception as error:
        return [f"power limits and clocks: NVML cannot list the GPUs ({error})"]
    finally:
        nvml.nvmlShutdown()
    problem = writable(place)
    return [*lines, f"power limits and clocks: not set while {problem}"] if problem else lines


def _line(gpu: GpuKnobs) -> str:
    head = f"{gpu.label}: "
    if gpu.slices:
        return f"{head}left alone, as MIG is on and its settings are those of the whole card"
    try:
        limits = gpu.limits()
    except Exception as error:
        return head + refusal("power limits", error)
    head += (
        f"power limit {limits.found_mw / 1000:g} W, possible {limits.min_mw / 1000:g} to {limits.max_mw / 1000:g} W,"
        f" default {limits.default_mw / 1000:g} W; "
    )
    try:
        gpu.try_limit()
    except Exception as error:
        return head + refusal("limit and clocks", error)
    sign = gpu.clock_setting()
    clocks = f"its clocks are left alone, as {sign}" if sign else "no sign of a clock setting"
    return f"{head}this process may set it; {clocks}"


def _records(folder: Path) -> Sequence[str]:
    lines = []
    for path in sorted(folder.glob("cap-*.state")):
        record = guardian_main.read(str(path))
        if record is None or record.boot != guardian_main.boot_id():
            continue
        lives = guardian_main.owner_lives(record)
        who = f"process {record.owner[1]}" if record.owner[1] != os.getpid() else "this process"
        state = "has changed it and is at work" if lives else "had changed it and is dead: the next training repairs it"
        lines.append(f"GPU {record.uuid}: {who} {state} ({path})")
    return lines
