"""Words that the tests of exporters share."""

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from tests.helpers.flat_meter import FlatMeter

SIGNAL = ConstantSignal(360.0, zone="test", source="test")
Sample = tuple[str, frozenset[tuple[str, str]]]


def session(tmp_path: Path, export: dict[str, Any], meter: Any = None, **more: Any) -> GreenSession:
    """A session that books five times a second."""
    sections = {name: more.pop(name, {}) for name in ("run", "carbon", "precision", "policy")}
    config = {
        **sections,
        "price": more.pop("price", None),
        "run": {"dir": str(tmp_path / "runs"), "report": False, "book_s": 0.2, **sections["run"]},
        "power": {"sample_s": 0.02},
        "export": export,
    }
    return GreenSession(config, meter=meter or FlatMeter(), signal=more.pop("signal", SIGNAL), **more)


def planned(tmp_path: Path, export: dict[str, Any], meter: Any = None) -> GreenSession:
    """One with a plan that has a declared table, whose FP8 needs half the joules of BF16."""
    actions = tmp_path / "actions.yaml"
    rows = "- {gear: bf16, tokens_per_s: 200, power_w: 500}\n- {gear: fp8, tokens_per_s: 400, power_w: 500}\n"
    actions.write_text(rows, encoding="utf-8")
    policy = {
        "name": "mpc", "tokens": 1e6, "deadline_h": 2.0, "idle_w": 0.0, "decide_s": 1.0, "actions": str(actions),
        "budget_g": 1000.0,
    }  # fmt: skip
    gears = {"gears": ["bf16", "fp8"], "probe_every": 0}
    carbon = {"market_g_per_kwh": 50.0}
    return session(tmp_path, export, meter, policy=policy, precision=gears, carbon=carbon, price={"per_kwh": 0.3})


def page(port: int, token: str | None = None) -> str:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[Sample, float]:
    """Return values by name and labels, run and rank left out."""
    return {
        (s.name, frozenset((k, v) for k, v in s.labels.items() if k not in ("run", "rank"))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def value(found: dict[Sample, float], name: str, **labels: str) -> float | None:
    """Return the only sample of a name with these labels among its own; None where there is none."""
    hits = [v for (n, own), v in found.items() if n == f"greentrain_{name}" and set(labels.items()) <= own]
    assert len(hits) < 2, f"{name} {labels}: {hits}"
    return hits[0] if hits else None


def until(wanted: Callable[[], bool], longest_s: float = 90.0) -> None:
    end_s = time.monotonic() + longest_s
    while not wanted():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.05)
