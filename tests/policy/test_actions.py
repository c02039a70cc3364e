"""Tables of actions from files, runs and this package, each labelled with where it is from."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import ConfigError
from greentrain.policy.action_sources import read_actions
from greentrain.policy.action_table import MeanWithCI
from tests.report.planned_run import NAMES, POWER_W, TOKENS_PER_S, planned
from tests.simulator.planning import TABLE, YAML


def _run(folder: Path, **keys: Any) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"run_id": "r1", **keys}))
    return folder


def test_a_declared_file(tmp_path: Path) -> None:
    path = tmp_path / "actions.yaml"
    path.write_text(YAML)
    found = read_actions(str(path))
    assert found.table == dataclasses.replace(TABLE, device="a made-up machine")
    assert found.source == f"declared in {path}" and found.unit == "tokens"


def test_the_reference_is_a_word_unless_there_is_such_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "reference table of the benchmarks (8 nodes" in read_actions("reference").source
    monkeypatch.chdir(tmp_path)
    Path("reference").write_text(YAML)
    assert read_actions("reference").source == "declared in reference"


def test_the_table_that_a_run_measured(tmp_path: Path) -> None:
    costs = [dataclasses.replace(cost, provenance="measured") for cost in TABLE.costs]
    table = dataclasses.replace(TABLE, costs=costs, device="H100")
    found = read_actions(str(_run(tmp_path / "run", action_table=table.to_dict())))
    assert found.table.costs == tuple(costs) and found.source == "run r1 on H100"


def test_a_table_of_samples_says_so(tmp_path: Path) -> None:
    costs = [
        dataclasses.replace(cost, tokens_per_s=None, samples_per_s=MeanWithCI(mean=10.0)) for cost in TABLE.costs
    ]  # fmt: skip
    table = dataclasses.replace(TABLE, costs=costs)
    assert read_actions(str(_run(tmp_path / "run", action_table=table.to_dict()))).unit == "samples"


def test_the_table_behind_a_plan_is_in_the_time_of_the_machine(tmp_path: Path) -> None:
    table = read_actions(str(planned(tmp_path))).table
    assert [str(cost.action) for cost in table.costs] == list(NAMES[1:])
    for cost, speed, power in zip(table.costs, TOKENS_PER_S[1:], POWER_W[1:], strict=True):
        assert cost.tokens_per_s is not None and cost.power_w is not None
        assert cost.tokens_per_s.mean == pytest.approx(speed) and cost.power_w.mean == pytest.approx(power)
        assert cost.provenance == "assumed"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "has no action table: the run neither measured its gears .* nor planned"),
        ({"action_table": {"format": 9}}, "has format 9, this version reads 1"),
        ({"action_table": {"format": 1}}, "it is no action table"),
        ({"plan": {"rows": []}}, "the action table cannot be read"),
    ],
)
def test_a_run_without_a_table(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_actions(str(_run(tmp_path / "run", **keys)))


def test_what_is_no_table_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run folder"):
        read_actions(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot read the action table"):
        read_actions(str(tmp_path / "absent.yaml"))
    (tmp_path / "empty.yaml").write_text("actions: []")
    with pytest.raises(ConfigError, match="declares no action"):
        read_actions(str(tmp_path / "empty.yaml"))
