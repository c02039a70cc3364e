"""Estimates, the table's round trip, and its file in the cache."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.policy import action_table as action_cache
from greentrain.policy.action_table import (
    FORMAT,
    STUDENT_T_95,
    Action,
    ActionCache,
    ActionCost,
    ActionTable,
    MeanWithCI,
    cache_key,
    declared,
    student_t_95,
)
from greentrain.types import Gear
from greentrain.utils.files import ENV_DIR, cache_folder


def _table() -> ActionTable:
    bf16 = ActionCost(
        action=Action(gear=Gear.BF16),
        steps_per_s=MeanWithCI(mean=2.5, low=2.4, high=2.6),
        tokens_per_s=MeanWithCI(mean=41_234.5, low=40_000.0, high=42_469.0),
        power_w=MeanWithCI(mean=612.3, low=600.0, high=624.6),
        j_per_step=MeanWithCI(mean=245.0),
        j_per_token=MeanWithCI(mean=0.01485, low=0.0147, high=0.015),
        provenance="measured",
        steps=30,
        blocks=3,
        speed_ratio=MeanWithCI(mean=1.0, low=1.0, high=1.0),
        efficiency_ratio=MeanWithCI(mean=1.0, low=1.0, high=1.0),
    )
    capped = ActionCost(action=Action(gear=Gear.FP8, cap=0.8, ranks=2), steps_per_s=MeanWithCI(mean=3.0), blocks=1)
    return ActionTable(
        costs=(bf16, capped),
        device="NVIDIA H200",
        world_size=4,
        tokens_per_step=16_384.0,
        created_unix_s=1.75e9,
        versions={"torch": "2.13.0"},
    )


# -- estimates -------------------------------------------------------------------------------------------------


def test_an_interval_is_that_of_the_textbook() -> None:
    # mean 10, s = 1, n = 4: half width 3.182 / 2
    values = [10 - math.sqrt(1.5), 10.0, 10.0, 10 + math.sqrt(1.5)]
    estimate = MeanWithCI.of(values)
    assert estimate.low is not None and estimate.high is not None
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((10.0, 10 - 1.591, 10 + 1.591), abs=1e-9)


def test_one_value_has_no_interval() -> None:
    assert MeanWithCI.of([3.0]) == MeanWithCI(mean=3.0, low=None, high=None)


def test_an_interval_of_what_cannot_be_negative_ends_at_0() -> None:
    estimate = MeanWithCI.of([1.0, 3.0])
    assert estimate.low == 0.0
    assert estimate.high == pytest.approx(2 + 12.706 * math.sqrt(2) / math.sqrt(2))


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, 1.0]])
def test_an_estimate_of_nothing_is_refused(values: list[float]) -> None:
    with pytest.raises(ConfigError):
        MeanWithCI.of(values)


@pytest.mark.parametrize("degrees", STUDENT_T_95)
def test_the_quantiles_are_those_of_students_t(degrees: int) -> None:
    t, n = STUDENT_T_95[degrees], 20_000
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    density = [scale * (1 + (t * (i + 0.5) / n) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(n)]
    assert sum(density) * t / n == pytest.approx(0.475, abs=5e-5)


def test_between_two_quantiles_the_wider_interval_counts() -> None:
    assert student_t_95(14) == STUDENT_T_95[10] > STUDENT_T_95[15] == student_t_95(19)
    assert student_t_95(100_000) == STUDENT_T_95[100]


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (MeanWithCI(mean=41_234.5, low=40_000.0, high=42_469.0), "41,234 ± 1,234"),
        (MeanWithCI(mean=0.014853, low=0.0147, high=0.015), "0.01485 ± 0.00015"),
        (MeanWithCI(mean=612.34), "612.3"),
        (MeanWithCI(mean=0.0), "0"),
    ],
)
def test_an_estimate_is_printed_without_an_exponent(estimate: MeanWithCI, text: str) -> None:
    assert str(estimate) == text


# -- the table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"cap": 0.0}, {"cap": 1.1}, {"cap": math.nan}, {"ranks": 0}])
def test_an_action_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Action(gear=Gear.BF16, **wrong)


def test_a_cost_is_found_by_its_action() -> None:
    table = _table()
    assert table.of(Action(gear=Gear.BF16)) is table.costs[0]
    assert table.of(Action(gear=Gear.FP8, cap=0.8, ranks=2)) is table.costs[1]
    assert table.of(Action(gear=Gear.FP8)) is None
    assert table.actions == (Action(gear=Gear.BF16), Action(gear=Gear.FP8, cap=0.8, ranks=2))


def test_a_table_comes_back_from_json_as_it_was() -> None:
    table = _table()
    assert ActionTable.from_dict(json.loads(json.dumps(table.to_dict()))) == table


def test_a_table_from_before_the_ratios_is_read_and_all_its_actions_may_be_used() -> None:
    data = _table().to_dict()
    for cost in data["costs"]:
        del cost["speed_ratio"], cost["efficiency_ratio"]
    table = ActionTable.from_dict(data)
    assert [cost.speed_ratio for cost in table.costs] == [None, None]
    assert all(table.better(action) for action in table.actions) and table.doubts == ""


def test_the_printed_table_says_what_is_unknown_and_where_joules_come_from() -> None:
    head, names, bf16, fp8 = str(_table()).splitlines()
    assert head == "NVIDIA H200, 4 ranks"
    assert names.split() == ["action", "tokens/s", "W", "J/token", "joules", "steps"]
    assert bf16.startswith("bf16") and "612.3 ± 12" in bf16 and "measured" in bf16 and "30 in 3 blocks" in bf16
    assert fp8.startswith("fp8 at 80% on 2") and fp8.count("unknown") == 3 and "missing" in fp8


def _without(name: str) -> dict[str, Any]:
    data = _table().to_dict()
    del data[name]
    return data


def _cost_with(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(_table().to_dict()))
    data["costs"][0].update(changes)
    return data


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {**_table().to_dict(), "format": FORMAT + 1},
        *(_without(name) for name in _table().to_dict()),
        {**_table().to_dict(), "costs": 3},
        {**_table().to_dict(), "versions": None},
        _cost_with(action={"gear": "fp4", "cap": 1.0, "ranks": None}),
        _cost_with(power_w=612.3),
        _cost_with(power_w={"mean": math.nan}),
        _cost_with(power_w={"mean": "much"}),
        _cost_with(power_w={"watts": 1.0}),
    ],
)
def test_what_is_no_table_is_a_value_error(data: Any) -> None:
    with pytest.raises(ValueError):
        ActionTable.from_dict(data)


# -- the cache -------------------------------------------------------------------------------------------------


def test_a_table_comes_back_from_the_cache(tmp_path: Path) -> None:
    cache = ActionCache(tmp_path / "new" / "folder")
    assert cache.load("k") is None
    path = cache.save("k", _table())
    assert path == tmp_path / "new" / "folder" / "actions" / "k.json"
    assert cache.load("k") == _table()
    assert [file.name for file in path.parent.iterdir()] == ["k.json"]


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "costs": [', b"\xff\xfe", b"[]", b'{"format": 99}', b"{}"])
def test_a_file_that_cannot_be_read_counts_as_none_with_one_warning(tmp_path: Path, content: bytes) -> None:
    cache = ActionCache(tmp_path)
    cache.path("k").parent.mkdir()
    cache.path("k").write_bytes(content)
    with pytest.warns(GreenTrainWarning, match=r"k\.json is not used") as warned:
        assert cache.load("k") is None
    assert len(warned) == 1
    cache.save("k", _table())
    assert cache.load("k") == _table()


def test_a_folder_in_the_files_place_counts_as_none(tmp_path: Path) -> None:
    cache = ActionCache(tmp_path)
    cache.path("k").mkdir(parents=True)
    with pytest.warns(GreenTrainWarning, match="is not used"):
        assert cache.load("k") is None


def test_a_disk_that_cannot_be_written_to_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(action_cache, "write_json", refuse)
    with pytest.warns(GreenTrainWarning, match=f"Read-only file system.*set {ENV_DIR}"):
        assert ActionCache(tmp_path).save("k", _table()) is None


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(GreenTrainWarning, match="cannot be kept"):
        assert ActionCache(tmp_path / "file").save("k", _table()) is None


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, xdg, home = str(tmp_path / "own"), str(tmp_path / "xdg"), tmp_path / "home"
    monkeypatch.setattr(Path, "home", lambda: home)
    assert cache_folder({ENV_DIR: own, "XDG_CACHE_HOME": xdg}) == tmp_path / "own"
    assert cache_folder({"XDG_CACHE_HOME": xdg}) == tmp_path / "xdg" / "greentrain"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == home / ".cache" / "greentrain"
    assert cache_folder({}) == home / ".cache" / "greentrain"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(ENV_DIR, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.warns(GreenTrainWarning, match="cache folder"):
        assert ActionCache().load("k") is None
    with pytest.warns(GreenTrainWarning, match="cache folder"):
        assert ActionCache().save("k", _table()) is None


FACTS: dict[str, Any] = {
    "actions": [Action(gear=Gear.BF16), Action(gear=Gear.FP8)],
    "parameters": [((256, 128), "torch.float32"), ((256,), "torch.float32")],
    "layers": [{"name": "a", "chosen": True}],
    "backend": "scaled_mm",
    "device": "NVIDIA H200",
    "world_size": 1,
    "versions": {"torch": "2.13.0"},
    "tokens_per_step": 4096.0,
    "settings": {"compiled": False},
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actions", [Action(gear=Gear.BF16)]),
        ("actions", [Action(gear=Gear.BF16), Action(gear=Gear.FP8, cap=0.8)]),
        ("parameters", [((128, 256), "torch.float32"), ((256,), "torch.float32")]),
        ("parameters", [((256, 128), "torch.bfloat16"), ((256,), "torch.float32")]),
        ("parameters", [((256, 128), "torch.float32")]),
        ("layers", [{"name": "a", "chosen": False}]),
        ("backend", "torchao"),
        ("device", "NVIDIA H100"),
        ("world_size", 2),
        ("versions", {"torch": "2.14.0"}),
        ("tokens_per_step", 8192.0),
        ("tokens_per_step", None),
        ("settings", {"compiled": True}),
        ("settings", None),
    ],
)
def test_the_key_changes_with_each_ingredient(name: str, value: Any) -> None:
    key = cache_key(**FACTS)
    assert len(key) == 64 and int(key, 16)
    assert cache_key(**{**FACTS, name: value}) != key


def test_the_key_stays_where_nothing_changes() -> None:
    same = {**FACTS, "actions": iter(FACTS["actions"][::-1]), "tokens_per_step": 4099, "versions": {"torch": "2.13.0"}}
    assert cache_key(**same) == cache_key(**FACTS)


# -- declared tables -------------------------------------------------------------------------------------------


def _declared_file(folder: Path, text: str) -> Path:
    path = folder / "actions.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_declared_table_is_assumed(tmp_path: Path) -> None:
    text = "- {gear: bf16, tokens_per_s: 5e5, power_w: 62400}"
    text += "\n- {gear: fp8, ranks: 4, cap: 0.6, tokens_per_s: 4e5, power_w: 2e4}"
    table = declared(_declared_file(tmp_path, text))
    assert table.actions == (Action(gear=Gear.BF16), Action(gear=Gear.FP8, cap=0.6, ranks=4))
    assert {cost.provenance for cost in table.costs} == {"assumed"}
    first = table.costs[0]
    assert first.tokens_per_s == MeanWithCI(mean=5e5) and first.j_per_token == MeanWithCI(mean=62400 / 5e5)
    assert first.steps_per_s is None
    assert table.device == "declared in actions.yaml" and table.world_size == 4
    assert ActionTable.from_dict(json.loads(json.dumps(table.to_dict()))) == table
    assert "assumed" in str(table) and "0 in 0" not in str(table)


def test_a_declared_table_may_name_its_device(tmp_path: Path) -> None:
    text = "device: 8 x H100\nactions:\n- {gear: bf16, tokens_per_s: 5e5, power_w: 62400}"
    assert declared(_declared_file(tmp_path, text)).device == "8 x H100"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "declares no action"),
        ("gear: bf16", "unknown key 'gear'; a declared table has"),
        ("{actions: 3}", "holds a int"),
        ("- [a", "not valid YAML"),
        ("- {gear: bf16, tokens_per_s: 1, power_w: 1, power_w: 2}", "line 1.* 'power_w' is there twice"),
        ("device: 2024-13-45", "holds a NoneType"),
        ("- bf16", "row 1 is 'bf16'; it must be a section with keys: gear"),
        ("- {gear: bf16, tokens_per_s: 1}", "row 1: power_w is missing"),
        (
            "- {gear: bf16, tokens_per_s: 1, power_w: 1}\n- {gear: bf17, tokens_per_s: 1, power_w: 1}",
            "row 2: gear is 'bf17'",
        ),
        ("- {gear: bf16, tokens_per_s: 0, power_w: 1}", "row 1: tokens_per_s is 0.0; it must be between"),
        ("- {gear: bf16, tokens_per_s: 1, power_w: .nan}", "row 1: power_w is nan"),
        ("- {gear: bf16, tokens_per_s: fast, power_w: 1}", "row 1: tokens_per_s is 'fast'; expected a number"),
        ("- {gear: bf16, tokens_per_s: 1, power_w: true}", "row 1: power_w is True"),
        ("- {gear: bf16, cap: 1.5, tokens_per_s: 1, power_w: 1}", "row 1: cap is 1.5; it must be between 0.01 and 1"),
        ("- {gear: bf16, ranks: 0, tokens_per_s: 1, power_w: 1}", "row 1: ranks is 0"),
        (
            "- {gear: bf16, rank: 1, tokens_per_s: 1, power_w: 1}",
            "unknown key rank; known here: .*Did you mean 'ranks'",
        ),
        ("- &a {gear: bf16, tokens_per_s: 1, power_w: 1}\n- *a", "row 2: bf16 is row 1 already"),
    ],
)
def test_what_is_wrong_with_a_declared_table_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        declared(_declared_file(tmp_path, text))
    assert "actions.yaml" in str(caught.value)


def test_a_declared_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.actions.*nothing\.yaml: No such file"):
        declared(tmp_path / "nothing.yaml")
