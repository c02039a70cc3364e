"""Run folders as a year of three projects leaves them, with a few that went wrong."""

import random
from pathlib import Path

from greentrain.types import Provenance
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, sensor

HOUR_S = 3600.0
ZONES = {"FRA": 45.0, "DEU": 380.0, "US-CAL-CISO": 240.0, "SWE": 30.0}
MODELS = {"gpt-small": 2.0e6, "gpt-medium": 6.0e5, "reward-1b": 1.1e6}
"""Tokens an hour of one GPU."""
L40 = "NVIDIA L40S"


def many_runs(root: Path, count: int) -> Path:
    """Write so many runs, the same ones each time."""
    chance = random.Random(11)
    for i in range(count):
        one_run(root, f"run-{i:04d}", chance)
    return root


def one_run(root: Path, run_id: str, chance: random.Random) -> Path:
    """Write a run of up to two days."""
    model = chance.choice(list(MODELS))
    zone = chance.choice(list(ZONES))
    tags = {"project": chance.choice(["atlas", "beacon", "corpus"]), "user": chance.choice(["ann", "bo", "chi"])}
    tags |= {"model": model} if chance.random() < 0.9 else {}
    start_s = T0_S + chance.uniform(0, 330) * 86_400.0
    hours = chance.choice([1, 2, 5, 12, 48])
    large = chance.random() < 0.6
    gpu_w, speed = (550.0, 1.0) if large else (280.0, 0.45)
    gpu = GPU if large else sensor("GPU-0", "gpu", L40)
    counted = chance.random() < 0.92
    with_cpu = chance.random() < 0.5
    entries = []
    for k in range(3):
        span_s = hours * HOUR_S / 3
        devices = {"GPU-0": device(gpu_w * chance.uniform(0.8, 1.0) * span_s)}
        if with_cpu:
            devices["cpu"] = device(90.0 * span_s, Provenance.MODELLED)
        entries.append(
            entry(
                start_s + k * span_s,
                start_s + (k + 1) * span_s,
                devices,
                g_per_kwh=None if chance.random() < 0.04 else ZONES[zone] * chance.uniform(0.7, 1.4),
                zone=zone,
                tokens=int(MODELS[model] * speed * span_s / HOUR_S) if counted else 0,
                steps=100,
                embodied_g=25.0 * span_s / HOUR_S,
            )
        )
    config = {"carbon": {"pue": 1.2}, "run": {"name": model}}
    folder = Folder(root, run_id, name=model, tags=tags, created_unix_s=start_s, config=config)
    reason = chance.choice(["finished"] * 8 + ["exception", None])
    folder.rank(0, [gpu, CPU] if with_cpu else [gpu], entries, reason=reason)
    return folder.path
