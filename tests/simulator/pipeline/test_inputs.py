"""Tables from files, runs, engines and the roofline."""

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from greentrain.errors import ConfigError, RunFolderError
from greentrain.fpga_backend.explore.space import open_subject
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.policy.offload.stages import Stage
from greentrain.simulator.pipeline.inputs import (
    PipelineInputs,
    RolloutBatch,
    card_bound,
    card_figures,
    gpu_figures,
    open_footprint,
    open_grid,
    open_table,
    watts,
)
from greentrain.simulator.pipeline.simulate import Mode, simulate
from greentrain.simulator.pipeline.table_sources import from_csv, from_mapping, read_table, table_of_run, with_engine
from greentrain.types import LedgerEntry, Provenance
from greentrain.utils.quantities import SourceKind
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, sensor
from tests.simulator.pipeline.tables import YAML, measured, table

WORK = RolloutBatch(sequences=32, length=512)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_yaml_file_says_what_the_table_of_the_tests_says(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(YAML)
    found = read_table(file)
    idle_w = found.card_idle_w
    assert idle_w is not None and idle_w.kind is SourceKind.ASSUMED
    assert found.embodied_kg == (45.0, 57.5, 70.0) and found.gpu == "A100"
    for mode in Mode:
        assert simulate(found, mode).line == dataclasses.replace(
            simulate(table(), mode).line, provenance=simulate(found, mode).line.provenance
        )
    assert read_table(file, tokens=7).tokens == 7


def test_a_csv_file_says_the_same() -> None:
    text = textwrap.dedent("""\
        stage,where,seconds,watts,kind,source
        generate,gpu,4,300,measured,timers
        reference,gpu,1,200,measured,timers
        reference,card,2,60,modelled,a model
        reward,gpu,1,200,measured,timers
        train,gpu,4,400,measured,timers
        idle,gpu,,100,assumed,
        """)
    found = from_csv(text, "t.csv", tokens=1000)
    assert found.step_s == 10 and found.offloadable == (Stage.REFERENCE,)
    row = found.rows[Stage.REFERENCE]
    assert row.card_s is not None and (row.card_s.value, row.card_s.kind) == (2, SourceKind.MODELLED)
    assert found.gpu_idle_w is not None and found.gpu_idle_w.kind is SourceKind.ASSUMED
    with pytest.raises(ConfigError, match="give tokens, or --tokens"):
        from_csv(text, "t.csv")
    with pytest.raises(ConfigError, match=r"line 2: where is 'tpu'; known: gpu, card"):
        from_csv(text.replace("generate,gpu", "generate,tpu"), "t.csv", tokens=1)
    with pytest.raises(ConfigError, match=r"line 2: seconds is 'four'"):
        from_csv(text.replace("gpu,4,300", "gpu,four,300"), "t.csv", tokens=1)
    with pytest.raises(ConfigError, match=r"line 8: reward on the gpu is there already"):
        from_csv(text + "reward,gpu,2,200,measured,timers\n", "t.csv", tokens=1)
    with pytest.raises(ConfigError, match=r"line 7: idle has seconds"):
        from_csv(text.replace("idle,gpu,,", "idle,gpu,1,"), "t.csv", tokens=1)
    with pytest.raises(ConfigError, match="no column watts"):
        from_csv("stage,where,seconds\n", "t.csv", tokens=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token": 5}, "unknown key token; known here"),
        ({"kind": "guessed"}, "kind is 'guessed'; known: measured, modelled, published, assumed"),
        ({"kind": None}, "does not say where it is from: add kind"),
        ({"tokens": 0}, "tokens is 0.0; it must be between"),
        ({"tokens": None}, "nobody says how many tokens"),
        ({"sequences": 2.5}, "sequences is 2.5; it is a whole number"),
        ({"forward_share": 2}, "forward_share is 2.0; it must be between 0 and 1"),
        ({"gpu": {"cuont": 2}}, "unknown key cuont.*Did you mean 'count'"),
        ({"card": {"embodied_kg": [3, 2, 1]}}, "low, mid and high in this order"),
        ({"stages": {"generate": {"gpu_s": 1}}}, "no stage train"),
        ({"stages": {"generate": {"gpu_w": 1}}}, "stages.generate has no gpu_s"),
        ({"stages": {"generate": {"gpu_s": "x"}}}, "stages.generate.gpu_s is 'x'; expected a number"),
        ({"stages": {"generate": {"gpu_s": -1}}}, "stages.generate.gpu_s is -1.0; it must be between 0"),
        ({"stages": {"generate": {"gpu_s": 0}, "train": {"gpu_s": 0}}}, "take 0 s together; a step takes time"),
        ({"stages": {"generate": 3}}, "stages.generate is 3; it must be a section"),
        ({"stages": {"sample": {"gpu_s": 1}}}, "unknown key sample"),
        (
            {"stages": {"generate": {"gpu_s": 1}, "train": {"gpu_s": 1, "card_s": 1}}},
            "train has a time on the card, but its weights move",
        ),
    ],
)
def test_a_wrong_table_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_mapping({**yaml.safe_load(YAML), **change}, "t.yaml")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        read_table(bad)
    with pytest.raises(ConfigError, match=r"cannot read the table of stages .*none\.yaml"):
        read_table(tmp_path / "none.yaml")


# -- runs --------------------------------------------------------------------------------------------------------------

SHARES = {"generate": 0.4, "reward": 0.1, "reference": 0.1, "forward": 0.1, "backward": 0.2, "data": 0.1}


def _entry(i: int, devices: dict[str, float], provenance: Provenance = Provenance.MEASURED) -> LedgerEntry:
    """Ten seconds of 5 steps, joules twice as dense in generation."""
    made = {
        uid: device(energy_j, provenance if uid.startswith("GPU") else Provenance.MODELLED, phases=SHARES)
        for uid, energy_j in devices.items()
    }
    one = entry(T0_S + 10 * i, T0_S + 10 * (i + 1), made, steps=5, tokens=500)
    return dataclasses.replace(one, phase_s={name: 10 * share for name, share in SHARES.items()})


def test_a_run_with_phases_is_a_table(tmp_path: Path) -> None:
    folder = Folder(tmp_path, world_size=2)
    for rank in range(2):
        uid = f"GPU-{rank}"
        devices = {uid: 3000.0, "cpu": 500.0} if rank == 0 else {uid: 5000.0}
        sensors = [sensor(uid, "gpu", "H100"), *([CPU] if rank == 0 else [])]
        folder.rank(rank, sensors, [_entry(i, devices) for i in range(3)])
    found = table_of_run(folder.path)
    assert found.step_s == pytest.approx(2.0) and found.gpus == 2 and found.gpu == "H100"
    assert found.tokens == pytest.approx(200)  # of both ranks, in a step of the job
    train = found.rows[Stage.TRAIN]
    assert train.gpu_s.value == pytest.approx(0.8) and "data" in train.gpu_s.source
    assert found.forward_share.value == pytest.approx(0.25) and found.forward_share.kind is SourceKind.MEASURED
    assert (
        train.gpu_w is not None and train.gpu_w.value == pytest.approx(400) and train.gpu_w.kind is SourceKind.MEASURED
    )
    line = simulate(found, Mode.GPU).line
    assert line.energy_j == pytest.approx(8000 / 5)  # the GPUs' joules; the CPU's are not GPU's


def test_a_run_without_gpu_or_with_gaps(tmp_path: Path) -> None:
    home = Folder(tmp_path, "cpu").rank(0, [CPU], [_entry(0, {"cpu": 500.0})]).path
    watt = table_of_run(home).rows[Stage.GENERATE].gpu_w
    assert watt is not None and watt.value == pytest.approx(50) and watt.kind is SourceKind.MODELLED
    gap = Folder(tmp_path, "gap").rank(0, [GPU], [_entry(0, {"GPU-0": 0.0}, Provenance.MISSING)]).path
    assert table_of_run(gap).rows[Stage.GENERATE].gpu_w is None


@pytest.mark.parametrize(("silent", "known"), [(1, True), (3, False)])
def test_joules_of_intervals_with_gaps_do_not_make_watts_smaller(tmp_path: Path, silent: int, known: bool) -> None:
    whole = [_entry(i, {"GPU-0": 3000.0}) for i in range(20 - silent)]
    half = device(1500.0, Provenance.MEASURED, phases=SHARES)
    gaps = [
        dataclasses.replace(one, devices={"GPU-0": dataclasses.replace(half, missing_s=5.0)})
        for one in (_entry(i, {"GPU-0": 3000.0}) for i in range(20 - silent, 20))
    ]
    found = table_of_run(Folder(tmp_path).rank(0, [GPU], [*whole, *gaps]).path)
    watt = found.rows[Stage.GENERATE].gpu_w
    assert (watt is not None) is known and found.step_s == pytest.approx(2.0)
    if watt is not None:
        assert watt.value == pytest.approx(300.0) and watt.kind is SourceKind.MODELLED
        assert "of the 95% of its time without gaps" in watt.source


def test_a_run_that_is_no_pipeline_says_what_is_missing(tmp_path: Path) -> None:
    plain = Folder(tmp_path, "plain").rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0)}, tokens=1)]).path
    with pytest.raises(ConfigError, match=r"no phase generate; it has .*session\.phase"):
        table_of_run(plain)
    silent = dataclasses.replace(_entry(0, {"GPU-0": 1.0}), tokens=0)
    with pytest.raises(ConfigError, match="give --tokens"):
        table_of_run(Folder(tmp_path, "silent").rank(0, [GPU], [silent]).path)
    still = dataclasses.replace(silent, steps=0)
    with pytest.raises(ConfigError, match="no steps"):
        table_of_run(Folder(tmp_path, "still").rank(0, [GPU], [still]).path)
    with pytest.raises(RunFolderError):
        table_of_run(tmp_path)


def test_an_engines_statistics_are_the_cards_seconds() -> None:
    stats = {"steps": 10, "passes": {"reward": {"busy_s": 30.0, "calls": 10}}}
    found = with_engine(table(), stats, "e.json", card_w={Stage.REWARD: measured(60)})
    assert found.offloadable == (Stage.REWARD,)
    row = found.rows[Stage.REWARD]
    assert row.card_s is not None and (row.card_s.value, row.card_s.kind) == (3, SourceKind.MEASURED)
    wrong: list[tuple[Any, str]] = [
        ({"passes": {}}, "engine statistics are"),
        ({"steps": 0, "passes": {}}, "steps is 0"),
        ({"steps": 1, "passes": {"train": {"busy_s": 1}}}, "pass 'train' is none of"),
        ({"steps": 1, "passes": {"reward": {"busy_s": None}}}, "busy_s None"),
        ({"steps": 1, "passes": {"reward": {"busy_s": 0.0, "calls": 0}}}, "never ran"),
        ({"steps": 1, "passes": {"critic": {"busy_s": 1.0}}}, "ours has no stage critic"),
    ]
    for given, message in wrong:
        with pytest.raises(ConfigError, match=message):
            with_engine(table(), given, "e.json")


# -- the roofline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["minilm", "qwen2-0.5b", "llama-3-8b"])
def test_no_modelled_pass_beats_the_cards_slices_or_memory(model: str) -> None:
    card = assume(U55C)
    seconds, watt = card_figures(open_subject(model), card, WORK)
    least = card_bound(open_subject(model), card, WORK)
    assert seconds.value > max(least.dsp_s, least.memory_s) and watt.value <= 115
    assert seconds.kind is SourceKind.MODELLED and "assumed: dsp_share" in seconds.source
    assert least.tokens_per_s < 142_000 or model == "minilm"


def test_the_bounds_of_an_8b_model_are_the_data_sheets() -> None:
    least = card_bound(open_subject("llama-3-8b"), assume(U55C), WORK)
    assert least.memory_s == pytest.approx(6.98e9 / 460e9, rel=0.01)  # 6.98 G weights of the layers, one byte each
    assert least.dsp_s == pytest.approx(115.45e12 / (8304 * 2 * 250e6), rel=0.01)  # 230.9 TOP, as two a product
    gpu_s, gpu_w = gpu_figures(open_subject("llama-3-8b"), "H100", 8, WORK, 0.4)
    assert gpu_s.value == pytest.approx(230.9e12 / (989.4e12 * 0.4) / 8, rel=0.02) and gpu_w.value == 700


def test_models_that_do_not_fit_are_named() -> None:
    small = assume(U55C).with_(memory_bytes=1e9)
    with pytest.raises(ConfigError, match="llama-3-8b in int8 has no room on a U55C"):
        card_figures(open_subject("llama-3-8b"), small, WORK)
    with pytest.raises(ConfigError, match="minilm takes 512 tokens at most, and rollouts have 600"):
        card_figures(open_subject("minilm"), assume(U55C), RolloutBatch(sequences=1, length=600))
    with pytest.raises(ConfigError, match="U55C lacks"):
        card_figures(open_subject("minilm"), U55C, WORK)


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_a_published_table_without_a_card_gets_an_assumed_one() -> None:
    found = open_table(PipelineInputs(table="published"))
    assert found.offloadable == (Stage.REFERENCE, Stage.REWARD) and "assumed" in found.notes[-1]
    card_s = found.rows[Stage.REWARD].card_s
    assert card_s is not None and card_s.kind is SourceKind.ASSUMED


def test_a_modelled_card_is_asked_for_the_larger_batch() -> None:
    wanted = PipelineInputs(table="published", card="u55c", models={Stage.REWARD: "minilm"}, assume=True, length=128)
    once, twice = open_table(wanted), open_table(dataclasses.replace(wanted, batch=2.0))
    rows = [found.rows[Stage.REWARD] for found in (once, twice)]
    assert rows[0].card_s is not None and rows[1].card_s is not None
    assert rows[1].card_s.value == pytest.approx(2 * rows[0].card_s.value, rel=0.1)
    assert twice.step_s == pytest.approx(42) and "No design takes less for reward (minilm)" in twice.notes[-1]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (PipelineInputs(table="nothing"), "'nothing' is no run folder"),
        (
            PipelineInputs(table="published", slowdown=1.0, card="U55C"),
            "--slowdown and --card each say what the card takes",
        ),
        (PipelineInputs(table="published", slowdown=0.0), "--slowdown is 0.0"),
        (PipelineInputs(table="published", card="U55C"), "--card needs to know what runs on it"),
        (PipelineInputs(table="published", models={Stage.REWARD: "minilm"}), "no card to model them on"),
        (PipelineInputs(table="published", card="U56C", models={Stage.REWARD: "minilm"}), "Did you mean 'U55C'"),
        (
            PipelineInputs(table="published", card="U55C", models={Stage.REWARD: "minilm"}, assume=True, gpu="B1"),
            "no GPU 'B1'",
        ),
        (PipelineInputs(table="published", card="U55C", models={Stage.REWARD: "x"}, assume=True), "'x' is no folder"),
        (PipelineInputs(table="published", card_w="hot"), "--card-w is 'hot'; write watts"),
        (PipelineInputs(table="published", card_w="75:guess"), "--card-w: kind is 'guess'"),
        (PipelineInputs(table="published", micro_batches=0), "--micro-batches is 0"),
        (PipelineInputs(table="published", engine=Path("none.json")), "none.json cannot be read"),
    ],
)
def test_wrong_wishes_are_named(wanted: PipelineInputs, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_table(wanted)


def test_a_table_without_a_card_says_how_to_give_one(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        "kind: measured\ntokens: 1\nstages: {generate: {gpu_s: 1}, reward: {gpu_s: 1}, train: {gpu_s: 1}}\n"
    )
    with pytest.raises(ConfigError, match=r"on a card \(passes: reward\): give card_s in the file, or --slowdown"):
        open_table(PipelineInputs(table=str(file)))
    assert open_table(PipelineInputs(table=str(file), slowdown=2.0)).offloadable == (Stage.REWARD,)


def test_a_grid_is_a_number_or_a_zone_and_embodied_carbon_has_an_order_of_precedence() -> None:
    assert open_grid(None).g_per_kwh is None
    assert open_grid("250", 1.5).grams(3.6e6) == pytest.approx(375)
    california = open_grid("US-CAL-CISO")
    assert california.g_per_kwh is not None and 100 < california.g_per_kwh < 500 and "typical year" in california.source
    with pytest.raises(ConfigError, match="--grid: "):
        open_grid("ATLANTIS")
    with pytest.raises(ConfigError, match=r"--pue is 0\.5"):
        open_grid("100", 0.5)
    given = dataclasses.replace(table(), embodied_kg=(1, 2, 3), embodied_source="the file")
    for one, text, kg in ((given, "9", 9), (given, None, 1), (table(), None, 45)):
        found = open_footprint(one, text)
        assert found is not None and found.low_kg == kg
    with pytest.raises(ConfigError, match="--embodied-kg is 'much'"):
        open_footprint(table(), "much")
    assert watts("--card-w", "75:measured").kind is SourceKind.MEASURED
