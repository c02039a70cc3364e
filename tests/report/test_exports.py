"""emissions.csv, model_card.yaml and boamps.json are what their readers expect."""

import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from greentrain.errors import RunFolderError
from greentrain.ledger.reader import read_run
from greentrain.report.exports import (
    COLUMNS,
    boamps_report,
    model_card,
    write_boamps,
    write_emissions_csv,
    write_model_card,
)
from greentrain.report.summary import summarize
from tests.report.run_folders import GPU, T0_S, Folder, device, entry, four_ranks, one_rank


def _summary(folder: Path) -> dict[str, Any]:
    return summarize(read_run(folder))


def _csv_row(folder: Path) -> dict[str, str]:
    path = write_emissions_csv(_summary(folder), read_run(folder).run, folder)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1
    return rows[0]


def test_columns_are_codecarbons() -> None:
    data = pytest.importorskip("codecarbon.output_methods.emissions_data", reason="codecarbon is not installed")
    assert list(COLUMNS) == [field.name for field in dataclasses.fields(data.EmissionsData)]
    assert len(COLUMNS) == 38


def test_codecarbon_accepts_the_file_as_its_own(tmp_path: Path) -> None:
    module = pytest.importorskip("codecarbon.output_methods.file", reason="codecarbon is not installed")
    data = pytest.importorskip("codecarbon.output_methods.emissions_data")
    folder = one_rank(tmp_path)
    row = _csv_row(folder)
    output = module.FileOutput("emissions.csv", str(folder), on_csv_write="append")
    assert output.has_valid_headers(data.EmissionsData(**row))


def test_csv_is_in_kg_kwh_and_watts_times_pue(tmp_path: Path) -> None:
    row = _csv_row(one_rank(tmp_path))
    figures = {name: float(row[name]) for name in COLUMNS if name.endswith(("_power", "_energy")) and row[name]}
    assert figures == pytest.approx({"cpu_power": 60, "gpu_power": 360, "cpu_energy": 0.003, "gpu_energy": 0.018})
    assert float(row["energy_consumed"]) == pytest.approx(0.021)
    assert float(row["emissions"]) == pytest.approx(0.0084)
    assert float(row["emissions_rate"]) == pytest.approx(0.0084 / 180)
    assert float(row["duration"]) == 180
    assert row["gpu_count"] == "1"
    assert row["country_iso_code"] == "FRA"
    assert row["tracking_mode"] == "process"


def test_unknown_cells_are_empty(tmp_path: Path) -> None:
    row = _csv_row(one_rank(tmp_path, g_per_kwh=None))
    unknown = (
        "emissions",
        "emissions_rate",
        "ram_energy",
        "ram_power",
        "water_consumed",
        "wue",
        "cpu_utilization_percent",
    )
    assert [row[name] for name in unknown] == [""] * len(unknown)
    assert row["energy_consumed"] != ""


def test_several_gpus_are_counted(tmp_path: Path) -> None:
    row = _csv_row(four_ranks(tmp_path))
    assert row["gpu_count"] == "4"
    assert row["gpu_model"] == "4 x NVIDIA H100 80GB HBM3"


def _through_the_hub(folder: Path) -> Any:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    text = write_model_card(_summary(folder), folder / "model_card.yaml").read_text(encoding="utf-8")
    return hub.ModelCard(f"---\n{text}---\n# Model\n").data


def test_the_hub_reads_grams(tmp_path: Path) -> None:
    tags = {"training_type": "pre-training", "geographical_location": "Paris, France"}
    folder = Folder(tmp_path, tags=tags)
    folder.rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(3.6e6)}, g_per_kwh=100, pue=1.0)])
    card = _through_the_hub(folder.path)
    assert card.co2_eq_emissions["emissions"] == pytest.approx(100.0)
    assert card.co2_eq_emissions["training_type"] == "pre-training"
    assert card.co2_eq_emissions["geographical_location"] == "Paris, France"
    assert card.co2_eq_emissions["hardware_used"] == "1 x NVIDIA H100 80GB HBM3"
    source = card.co2_eq_emissions["source"]
    assert "grams CO2e of electricity (operational); embodied, beside them: unknown" in source
    carbon = {**_summary(folder.path)["carbon"], "embodied_g": {"low": 200.0, "mid": 300.0, "high": 400.0}}
    told = model_card(_summary(folder.path) | {"carbon": carbon | {"emissions_g": 400.0}})["co2_eq_emissions"]
    assert told["emissions"] == 100.0 and "embodied, beside them: 300 g" in told["source"], "the Hub reads electricity"


@pytest.mark.parametrize("energy_j", [3.6, 36.0, 3.6e6, 3.6e12])
def test_the_hubs_filter_reads_the_number_right(tmp_path: Path, energy_j: float) -> None:
    helpers = pytest.importorskip("huggingface_hub.utils.endpoint_helpers", reason="huggingface_hub is not installed")
    path = Folder(tmp_path).rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(energy_j)}, pue=1.0)]).path
    grams = energy_j / 3.6e6 * 400
    info = SimpleNamespace(card_data=_through_the_hub(path))
    within = helpers._is_emission_within_threshold(info, grams * 0.8, grams * 1.2)
    assert within, f"{info.card_data.co2_eq_emissions} is not about {grams} g"


def test_unknown_emissions_are_not_stated(tmp_path: Path) -> None:
    folder = one_rank(tmp_path, g_per_kwh=None)
    assert model_card(_summary(folder)) == {}
    text = write_model_card(_summary(folder), folder / "model_card.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) is None
    assert "not known" in text


def test_tags_are_quoted_not_interpreted(tmp_path: Path) -> None:
    folder = Folder(tmp_path, tags={"training_type": "a: [b\n#c"})
    folder.rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(3.6e6)})])
    text = write_model_card(_summary(folder.path), folder.path / "model_card.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["co2_eq_emissions"]["training_type"] == "a: [b\n#c"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "---\nCARD---\n"),
        ("# Mine\n\n---\n\ntext\n", "---\nCARD---\n# Mine\n\n---\n\ntext\n"),
        ("---\nlicense: mit # why\n---\n# Mine\n", "---\nlicense: mit # why\nCARD---\n# Mine\n"),
        (
            "---\nco2_eq_emissions:\n  emissions: 5.0\n\n  source: old\ntags:\n- a\n---\nco2_eq_emissions: of text\n",
            "---\ntags:\n- a\nCARD---\nco2_eq_emissions: of text\n",
        ),
        ("---\nco2_eq_emissions: 5\n---\n", "---\nCARD---\n"),
    ],
)
def test_a_model_card_of_somebody_changes_in_its_emissions_alone(
    tmp_path: Path, before: str, after: str, newline: str
) -> None:
    folder, readme = one_rank(tmp_path / "runs"), tmp_path / "README.md"
    card = yaml.safe_dump(model_card(_summary(folder)), sort_keys=False, allow_unicode=True, width=120)
    readme.write_bytes(before.replace("\n", newline).encode())
    for _ in range(2):  # again, nothing changes
        write_model_card(_summary(folder), readme)
        assert readme.read_bytes().decode() == after.replace("CARD", card).replace("\n", newline if before else "\n")


@pytest.mark.parametrize("text", [b"---\n- a\n- b\n---\n# Mine\n", b"---\na: [\n---\n", b"\xff\xfe\n"])
def test_a_model_card_that_cannot_be_read_is_left_as_it_is(tmp_path: Path, text: bytes) -> None:
    folder, readme = one_rank(tmp_path / "runs"), tmp_path / "README.md"
    readme.write_bytes(text)
    with pytest.raises(RunFolderError, match="is left as it is"):
        write_model_card(_summary(folder), readme)
    assert readme.read_bytes() == text
    write_model_card(_summary(one_rank(tmp_path / "blind", g_per_kwh=None)), readme)
    assert readme.read_bytes() == text, "nothing is stated"


# Required fields and enumerations of BoAmps 1.1.0 (Boavizta/BoAmps, model/*.json, commit 3bfefec).
_REQUIRED = {
    "header": ["reportDatetime"],
    "task": ["taskStage", "taskFamily", "algorithms", "dataset"],
    "infrastructure": ["infraType", "components"],
    "system": ["os"],
    "software": ["language"],
    "environment": ["country"],
}
_KNOWN = ["header", "task", "measures", "system", "software", "infrastructure", "environment", "quality"]


@pytest.mark.parametrize("tokens", [5000, 0])
def test_boamps_has_what_its_schema_requires(tmp_path: Path, tokens: int) -> None:
    folder = one_rank(tmp_path, tokens=tokens)
    path = write_boamps(_summary(folder), folder)
    assert path is not None
    report = json.loads(path.read_text(encoding="utf-8"))
    assert set(report) <= set(_KNOWN)
    for section, keys in _REQUIRED.items():
        assert all(key in report[section] for key in keys), section
    assert report["measures"][0]["measurementMethod"] == "greentrain"
    assert report["measures"][0]["powerConsumption"] == pytest.approx(0.0175)
    assert report["header"]["reportStatus"] in ("draft", "final", "corrective", "other")
    assert report["infrastructure"]["infraType"] in ("publicCloud", "privateCloud", "onPremise", "other")
    assert all(type(c["nbComponent"]) is int and c["componentType"] for c in report["infrastructure"]["components"])
    assert report["task"]["dataset"][0]["dataUsage"] == "input"
    assert report["task"]["dataset"][0]["dataType"] == ("token" if tokens else "other")
    assert report["quality"] in ("high", "medium", "low")


def test_codecarbons_boamps_model_reads_ours_without_loss(tmp_path: Path) -> None:
    models = pytest.importorskip("codecarbon.output_methods.boamps.models", reason="codecarbon is too old for BoAmps")
    report = boamps_report(_summary(one_rank(tmp_path)))
    assert models.BoAmpsReport.from_dict(report).to_dict() == report


def test_no_boamps_without_energy(tmp_path: Path) -> None:
    folder = Folder(tmp_path).rank(0, [], [entry(T0_S, T0_S + 10, {})]).path
    assert write_boamps(_summary(folder), folder) is None
    assert not (folder / "boamps.json").exists()
