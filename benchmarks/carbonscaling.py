"""CarbonScaling's figures, made again with GreenTrain's own tables: no training, no network, seconds.

    python benchmarks/carbonscaling.py --out build/carbonscaling                  # all of them
    python benchmarks/carbonscaling.py --figure bloom --out build/carbonscaling
    python benchmarks/carbonscaling.py --into docs/estimate-benchmarks.md         # the tables of that page

``scaling``    loss over grams: what the peak would give, what layouts give, with and without embodied carbon (Fig. 4a)
``trillion``   a mixture of 1T parameters on each generation: devices, grams of each, grams in all (Fig. 5)
``bloom``      hours, energy, grams and embodied carbon of BLOOM beside the published (Fig. 3b)
``bits``       training in 16 to 2 bits for the same loss (Fig. 6b)
``mixed``      one training on two kinds of device (section 3)

Nothing in them is measured. The published value stands in the notes where our text of the paper has one. Nothing is
tuned to meet it.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.estimator_runs import RUNS_CSV, read_runs
from benchmarks.figures import Line, Panel, Row, Sheet, arguments, make
from greentrain.errors import ConfigError
from greentrain.estimate import hardware
from greentrain.estimate.api import Options, estimate
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.mfu import FP8_SPEEDUP
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.power_model import watts
from greentrain.estimate.workload import Workload
from greentrain.types import Gear
from recipes.estimate.footprints import Bits, PointFootprint, effective_share, footprint
from recipes.estimate.scaling_laws import DENSE, FINE_GRAINED, ScalingPoint

TONNE_G: Final = 1e6
LIMIT_H: Final = 2190.0
"""Three months, as the paper has it."""
DEVICE: Final = "H100-SXM"
PLACE: Final = Cluster(device=DEVICE, count=1, g_per_kwh=323.0)
"""The paper's first region, us-east5, 323 g/kWh; the device in it is not read."""
GENERATIONS: Final = ("V100-16GB", "A100-80GB", "H100-SXM", "B200", "TPUv4", "TPUv5p")
WIDTH_PER_LAYER: Final = 128
"""Of the dense models that a layout is searched for: GPT-3 and Llama at their larger sizes."""
GAIN_8: Final = FP8_SPEEDUP.mid
"""Whole steps in 8 bits over 16, the middle of ``mfu.FP8_SPEEDUP``; assumed for each halving of bits."""
HALVED: Final = "assumed: each halving of bits brings 1.35 x; below 8 bits no table here knows a device's speed"


def scaling() -> Sheet:
    """Loss over grams along the dense law, ideal and practical, and the exponent of each line."""
    device = hardware.find(DEVICE)
    flops = np.geomspace(1e21, 10**25.4, 10).tolist()
    rows: list[Row] = []
    peak = device.peak_flop_s[Gear.BF16].value
    for flop in flops:
        point = DENSE.best(flop)
        one = footprint(point, device, PLACE)
        hours = flop / peak / 3600.0
        kwh = hours * watts(device, 1.0).node_w.mid * one.pue.mid / 1000.0
        made = 0.0 if one.embodied_g is None else one.embodied_g.mid / one.gpu_hours.mid * hours
        rows.append(_sample("ideal", point, hours, kwh * one.g_per_kwh.mid, made, note="all of the peak at every size"))
        try:
            found = estimate(
                _dense(point.total_parameters),
                Workload(tokens=point.tokens, sequence=2048),
                Cluster(device=DEVICE, limit_h=LIMIT_H, g_per_kwh=323.0),
                method="roofline",
            )
        except ConfigError:
            continue  # no layout ends in time: the line stops there
        made = 0.0 if found.embodied_g is None else found.embodied_g.mid
        note = f"{found.count} devices, {found.mfu:.1%} of the peak"
        rows.append(_sample("practical", point, found.gpu_hours.mid, found.operational.location_g.mid, made, note=note))
    lines, said = [], []
    for name in ("ideal", "practical"):
        for of, key in (("operational", "operational_t"), ("with embodied", "total_t")):
            some = [row for row in rows if row["line"] == name]
            grams = np.array([row[key] for row in some])
            loss = np.array([row["loss_nats_per_token"] for row in some])
            slope = float(np.polyfit(np.log(grams), np.log(loss - DENSE.c), 1)[0])
            said.append(f"{name}, {of}: {slope:.4f}")
            lines.append(Line(name=f"{name}, {of}", x=grams.tolist(), y=loss.tolist(), dashed=name == "ideal"))
    last = [row for row in rows if row["line"] == "practical"][-1]
    return Sheet(
        name="scaling",
        title="Loss over carbon on H100s, modelled",
        panels=[Panel(title="dense, 323 g/kWh", x="t CO2e", y="loss (nats per token)", lines=lines, log="x")],
        rows=rows,
        notes=[
            f"Exponent of loss - {DENSE.c} over grams: {'; '.join(said)}.",
            "Published: a power law whose factor grows by inefficiency; no exponent is at hand. Practical: layouts"
            f" for {LIMIT_H:.0f} h at a batch of 4 M tokens, up to {last['flop']:.1e} FLOP; beyond, no layout"
            " ends in time.",
            f"Law: {DENSE.source}. Both lines are extrapolated beyond 3.7 billion parameters.",
        ],
    )


def _sample(line: str, point: ScalingPoint, hours: float, grams: float, made: float, *, note: str) -> Row:
    return {
        "line": line,
        "flop": point.flop,
        "parameters": point.total_parameters,
        "tokens": point.tokens,
        "loss_nats_per_token": point.loss,
        "device_hours": hours,
        "operational_t": grams / TONNE_G,
        "embodied_t": made / TONNE_G,
        "total_t": (grams + made) / TONNE_G,
        "note": note,
        "provenance": "modelled",
    }


def _dense(parameters: float) -> ModelShape:
    """Return a dense model of about this size whose layouts can be searched."""
    layers = max(2, round((parameters / (12 * WIDTH_PER_LAYER**2)) ** (1 / 3)))
    width = WIDTH_PER_LAYER * layers
    return ModelShape(
        name=f"dense, {parameters:.3g}",
        layers=layers,
        d_model=width,
        heads=layers,
        kv_heads=layers,
        head_dim=WIDTH_PER_LAYER,
        d_ff=4 * width,
        gated=False,
        vocabulary=51_200,
    )


def trillion() -> Sheet:
    """A mixture of 1T parameters in all, 20 tokens an active parameter, on each generation."""
    blocks = (1e12 / (64.0**2 * (4.0 + 8.0 * FINE_GRAINED.expansion))) ** (1 / 3)
    active = 12.0 * 64.0**2 * blocks**3
    point = FINE_GRAINED.at(active, 20 * active, 32.0)
    rows: list[Row] = []
    for device in map(hardware.find, GENERATIONS):
        found = footprint(point, device, PLACE)
        count = math.ceil(found.gpu_hours.mid / LIMIT_H)
        made = math.nan if found.embodied_g is None else found.embodied_g.mid
        total = found.operational_g.mid + made
        rows.append(
            {
                "device": device.name,
                "year": device.year,
                "devices": count,
                "device_hours": found.gpu_hours.mid,
                "operational_t": found.operational_g.mid / TONNE_G,
                "embodied_t": made / TONNE_G,
                "total_t": total / TONNE_G,
                "kg_a_device": total / count / 1000.0,
                "provenance": "modelled",
            }
        )
    names = [str(row["device"]) for row in rows]

    def of(key: str, label: str) -> Panel:
        values = [row[key] for row in rows]
        return Panel(title=label, x="", y=label, lines=[Line(name=label, x=names, y=values)])

    return Sheet(
        name="trillion",
        title="A mixture of 1T parameters by generation of devices, modelled",
        panels=[of("devices", "devices"), of("kg_a_device", "kg CO2e a device"), of("total_t", "t CO2e in all")],
        rows=rows,
        notes=[
            f"{point.total_parameters:.3g} parameters in all, {active:.3g} active, {point.tokens:.3g} tokens (20 an"
            f" active one, assumed), granularity 32; {LIMIT_H:.0f} h, 323 g/kWh, PUE 1.1; share of the peak by"
            " published runs.",
            "Published: a figure, no values of which are at hand; its shape (experts by width) is not readable.",
        ],
    )


def bloom() -> Sheet:
    """BLOOM beside what its makers published."""
    run = next(run for run in read_runs(RUNS_CSV) if run.name == "BLOOM-176B")
    cluster = Cluster(device=DEVICE, count=384, g_per_kwh=57.0, pue=1.2)
    rows: list[Row] = [
        _bloom_row("published", hours=1_082_990, mwh=433.196, operational=24.7, embodied=11.2, provenance="published")
    ]
    for method in ("lca", "act"):
        found = estimate(
            run.shape,
            run.workload,
            Cluster(device=run.accelerator.name, count=384, g_per_kwh=cluster.g_per_kwh, pue=cluster.pue),
            method="mfu",
            options=Options(embodied=method, lifetime_years=6.0, year=2022),
        )
        mwh = found.energy_kwh.times(1e-3)
        for end in ("low", "mid", "high"):
            made = found.embodied_g
            rows.append(
                _bloom_row(
                    f"{method}, {end}",
                    hours=getattr(found.gpu_hours, end),
                    mwh=getattr(mwh, end),
                    operational=getattr(found.operational.location_g, end) / TONNE_G,
                    embodied=math.nan if made is None else getattr(made, end) / TONNE_G,
                    provenance="modelled",
                )
            )
    shown = [row for row in rows if row["line"] in ("published", "lca, mid", "act, mid")]
    names = [str(row["line"]) for row in shown]
    panels = [
        Panel(
            title=label,
            x="",
            y=label,
            lines=[Line(name=label, x=names, y=[row[key] for row in shown])],
        )
        for key, label in (("energy_mwh", "MWh"), ("operational_t", "operational t CO2e"), ("embodied_t", "embodied t"))
    ]
    return Sheet(
        name="bloom",
        title="BLOOM-176B: modelled beside the published",
        panels=panels,
        rows=rows,
        notes=[
            "Published (Luccioni et al. 2022): 1,082,990 h x 0.4 kW exactly, so its energy is no measurement; 24.7 t is"
            " without PUE and without idle nodes (another 14.6 t), 11.2 t embodied.",
            "Modelled: A100-80GB, 57 g/kWh, PUE 1.2, server share in the watts; embodied over 6 years.",
        ],
    )


def _bloom_row(line: str, *, hours: float, mwh: float, operational: float, embodied: float, provenance: str) -> Row:
    return {
        "line": line,
        "device_hours": hours,
        "energy_mwh": mwh,
        "operational_t": operational,
        "embodied_t": embodied,
        "provenance": provenance,
    }


def bits() -> Sheet:
    """Grams for the loss of BF16 at 1e24 FLOP, weights and activations in so many bits."""
    counts = (16, 12, 8, 6, 5, 4, 3, 2)
    rows: list[Row] = []
    for gain, name in ((GAIN_8, "1.35 x a halving"), (2.0, "2 x a halving"), (1.0, "no gain in speed")):
        for count in counts:
            share = effective_share(Bits(weights=count, activations=count))
            rows.append(
                {
                    "speed": name,
                    "bits": count,
                    "effective_share": share,
                    "flop_over_bf16": 1 / share,
                    "grams_over_bf16": 1 / share / gain ** math.log2(16 / count),
                    "provenance": "assumed",
                }
            )
    lines = [
        Line(
            name=name,
            x=[row["bits"] for row in rows if row["speed"] == name],
            y=[row["grams_over_bf16"] for row in rows if row["speed"] == name],
        )
        for name in dict.fromkeys(str(row["speed"]) for row in rows)
    ]
    best = min((row for row in rows if row["speed"] == "1.35 x a halving"), key=lambda row: row["grams_over_bf16"])
    return Sheet(
        name="bits",
        title="Training in few bits: grams over those of BF16 for the same loss, assumed",
        panels=[Panel(title="dense", x="bits of weights and activations", y="grams over BF16", lines=lines, log="x")],
        rows=rows,
        notes=[
            f"Published: 42 % less carbon by training in few bits. Here {best['grams_over_bf16'] - 1:+.0%} at"
            f" best, in {best['bits']} bits, at 1.35 x a halving. Which bits and speeds are behind it is not at hand.",
            f"Speed is {HALVED}; parameters count by Kumar et al. (arXiv 2411.04330), fitted to integers and"
            " to models of up to 220 million parameters.",
        ],
    )


def mixed() -> Sheet:
    """One training of 1e24 FLOP on 512 devices, of which a share is H100s and the rest A100s."""
    point = DENSE.best(1e24)
    pair = {name: footprint(point, hardware.find(name), PLACE) for name in ("A100-80GB", DEVICE)}
    slow, fast = pair.values()
    rows: list[Row] = []
    for share in np.linspace(0.0, 1.0, 9).tolist():
        count = {"A100-80GB": 512 * (1 - share), DEVICE: 512 * share}
        by_speed_h = 1.0 / sum(count[name] / found.gpu_hours.mid for name, found in pair.items())
        slowest_h = max(found.gpu_hours.mid for name, found in pair.items() if count[name] > 0)
        for split, hours in (("by speed", by_speed_h), ("the same to each", slowest_h / 512)):
            grams = sum(
                count[name] * _mixed_g(found, hours, found.gpu_hours.mid / 512 if split != "by speed" else hours)
                for name, found in pair.items()
            )
            rows.append(
                {
                    "split": split,
                    "h100_share": share,
                    "hours": hours,
                    "total_t": grams / TONNE_G,
                    "provenance": "modelled",
                }
            )
    splits = ("by speed", "the same to each")

    def lines(key: str) -> list[Line]:
        some = {split: [row for row in rows if row["split"] == split] for split in splits}
        return [Line(name=split, x=[r["h100_share"] for r in of], y=[r[key] for r in of]) for split, of in some.items()]

    label = "share of H100s among 512 devices"
    return Sheet(
        name="mixed",
        title="One training on A100s and H100s, modelled",
        panels=[
            Panel(title="time", x=label, y="hours", lines=lines("hours")),
            Panel(title="carbon", x=label, y="t CO2e", lines=lines("total_t")),
        ],
        rows=rows,
        notes=[
            f"{point.flop:.0e} FLOP, dense, 323 g/kWh, PUE {slow.pue.mid:g}; each kind reaches the share of its peak"
            f" that published runs of one kind reached ({slow.mfu.mid:.0%}, {fast.mfu.mid:.0%}); links between kinds"
            " cost nothing. A device that waits draws its own idle watts, and its server's share nothing.",
            "Published: several kinds in one run are modelled; no value of it is at hand.",
        ],
    )


def _mixed_g(found: PointFootprint, hours: float, busy_h: float) -> float:
    """Return the grams of one device: busy, then waiting for the slowest, and its share of being made."""
    made = 0.0 if found.embodied_g is None else found.embodied_g.mid / found.gpu_hours.mid
    idle = found.device.idle_w
    waiting_share = 0.0 if idle is None else idle.value / found.node_w.mid
    kwh = found.kwh_per_hour.mid * (busy_h + waiting_share * (hours - busy_h))
    return kwh * found.g_per_kwh.mid + made * hours


FIGURES: Final[Mapping[str, Callable[[], Sheet]]] = {
    "scaling": scaling,
    "trillion": trillion,
    "bloom": bloom,
    "bits": bits,
    "mixed": mixed,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    return make(FIGURES, arguments(parser, FIGURES, argv), "carbonscaling")


if __name__ == "__main__":
    raise SystemExit(main())
