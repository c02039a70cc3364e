"""The schema says what the checks say: both judge the same documents alike. And the command line around it."""

import dataclasses
import importlib.util
import json
import math
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from greentrain.cli.app import app
from greentrain.config.reference import DIALECT, FILE, HEADER, commented_yaml, plain, reference, schema
from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError

ROOT = Path(__file__).parents[2]
SCHEMA = schema()
JUDGE = jsonschema.Draft202012Validator(SCHEMA)
RUNNER = CliRunner()


def _leaves(section: Mapping[str, Any] = SCHEMA, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, found in section["properties"].items():
        if "properties" in found:
            yield from _leaves(found, f"{where}{name}.")
        else:
            yield where + name, found


LEAVES = dict(_leaves())


def _numbers(found: Any) -> Iterator[dict[str, Any]]:
    """Return every part of a key's schema that is a number."""
    if isinstance(found, dict):
        kinds = found.get("type", ())
        if {"number", "integer"} & ({kinds} if isinstance(kinds, str) else set(kinds)):
            yield found
        for value in found.values():
            yield from _numbers(value)
    elif isinstance(found, list):
        for value in found:
            yield from _numbers(value)


def _words(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        yield from found.get("enum", ())
        for value in found.values():
            yield from _words(value)
    elif isinstance(found, list):
        for value in found:
            yield from _words(value)


def _nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _is_rule(error: ConfigError) -> bool:
    """Return True if a rule between keys or of a text's form was broken: it was raised by a section, not by a value."""
    trace: TracebackType | None = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_code.co_name
    return trace.tb_frame.f_globals["__name__"] != "greentrain.utils.validation" or name in ("moment", "folder_name")


def _yes_or_no(error: Any) -> bool:
    """Return whether a schema of YAML 1.2 minds what YAML 1.1 takes for true or false."""
    text = isinstance(error.instance, str) and error.instance.lower() in ("yes", "no", "on", "off")
    return bool(text and error.validator == "type" and "boolean" in error.validator_value)


def _agree(document: Any) -> bool:
    """Check that schema and code judge a document alike, rules apart; return whether it is right."""
    schema_says = all(_yes_or_no(error) for error in JUDGE.iter_errors(document))
    try:
        GreenConfig.load(document)
    except ConfigError as error:
        if _is_rule(error):
            return False
        assert not schema_says, f"the schema takes {document}, the code does not: {error}"
        return False
    assert schema_says, f"the code takes {document}, the schema does not: {next(JUDGE.iter_errors(document)).message}"
    return True


TEXT = st.text(alphabet="abfpx_- *é", max_size=6)
SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20_000),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.sampled_from(sorted(set(_words(SCHEMA)))),
)
ANY = st.one_of(SCALAR, st.lists(SCALAR, max_size=3), st.dictionaries(TEXT, SCALAR, max_size=2))
GENERAL = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


def _edges(found: Any) -> list[float]:
    """Return the bounds of a key, and the numbers just beside them."""
    edges = []
    for part in _numbers(found):
        for name in ("minimum", "maximum"):
            if name in part:
                edge = part[name]
                beside = max(1, abs(edge) // 1_000_000)
                edges += [edge, edge - beside, edge + beside]
                if part["type"] != "integer" and isinstance(edge, float):
                    edges += [math.nextafter(edge, -math.inf), math.nextafter(edge, math.inf)]
    return edges


def _value(key: str) -> st.SearchStrategy[Any]:
    """Return values of a key: of its own kind often, of any kind now and then."""
    words, edges = sorted(set(_words(LEAVES[key]))), _edges(LEAVES[key])
    likely: list[st.SearchStrategy[Any]] = [st.just(LEAVES[key]["default"])]
    if words:
        likely += [st.sampled_from(words), st.lists(st.sampled_from(words), max_size=3)]
    if edges:
        numbers = st.sampled_from(edges)
        likely += [numbers, numbers, st.lists(numbers, max_size=3), st.dictionaries(TEXT, numbers, max_size=2)]
    if key == "policy.schedule":
        pair = st.tuples(st.integers(-1, 9), st.sampled_from(words) | TEXT).map(list)
        likely += [st.lists(pair, max_size=3), st.lists(pair | st.lists(SCALAR, max_size=3), max_size=2)]
        likely += [st.dictionaries(st.sampled_from(["0", "7", "-1", "x"]), st.sampled_from(words) | SCALAR, max_size=2)]
    return st.one_of(*likely, ANY)


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """Draw a configuration with a few keys, most of them known."""
    out: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(sorted(LEAVES)), max_size=3, unique=True)):
        *sections, name = key.split(".")
        if draw(st.integers(0, 15)) == 0:
            name += "s"
        place = out
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = draw(_value(key))
    if draw(st.integers(0, 15)) == 0:
        out[draw(st.sampled_from([*SCHEMA["properties"], "powers"]))] = draw(GENERAL)
    return out


@settings(max_examples=600)
@given(documents())
def test_code_and_schema_judge_alike(document: Any) -> None:
    _agree(document)


@pytest.mark.parametrize("key", sorted(LEAVES))
def test_every_edge_of_every_key_is_where_the_code_has_it(key: str) -> None:
    for edge in _edges(LEAVES[key]):
        _agree(_nested(key, edge))
        _agree(_nested(key, [edge]))
        _agree(_nested(key, {"a": edge} if key != "policy.schedule" else [[edge, "bf16"]]))


@pytest.mark.parametrize("key", sorted(LEAVES))
def test_every_key_takes_the_words_of_the_schema_and_no_other_kind(key: str) -> None:
    for value in [
        *_words(LEAVES[key]),
        "zzz",
        True,
        None,
        1,
        1.0,
        [],
        ["zzz"],
        {},
        {"a": "b"},
        {"a": True},
        [1],
        [None],
    ]:
        if key != "policy.schedule" or value != {"a": "b"}:
            _agree(_nested(key, value))


def test_defaults_and_empty_sections_are_right() -> None:
    assert _agree({}) and _agree(plain(GreenConfig())) and _agree(None)
    assert _agree({name: None for name in SCHEMA["properties"]})
    full: dict[str, Any] = {
        "actuators": {"power_cap": {}, "clocks": {}, "width": {}, "demand": {}},
        "price": {"per_kwh": 0.3},
        "water": {},
        "export": {"prometheus": {}, "otel": {}},
    }
    assert _agree(full) and _agree(plain(GreenConfig.load(full)))


@pytest.mark.parametrize(
    ("schedule", "right"),
    [
        ([[0.0, "bf16"]], True),
        ({"0": "bf16"}, True),
        ({"0": "bf16", "10": "fp8"}, True),
        ([[0.5, "bf16"]], False),
        ({"-1": "bf16"}, False),
        ({"0": "bf17"}, False),
    ],
)
def test_steps_as_json_has_them_are_judged_alike(schedule: Any, right: bool) -> None:
    policy = {"name": "scripted", "schedule": schedule}
    assert _agree({"precision": {"gears": ["bf16", "fp8"]}, "policy": policy}) is right


def test_steps_as_keys_are_right_in_both() -> None:
    policy = {"name": "scripted", "schedule": {0: "bf16", 100: "fp8"}}
    config = {"precision": {"gears": ["bf16", "fp8"]}, "policy": policy}
    assert GreenConfig.load(config).policy.schedule == ((0, "bf16"), (100, "fp8"))
    assert _agree(json.loads(json.dumps(config)))


def test_the_schema_is_one_of_the_draft_it_names() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == DIALECT and SCHEMA["$id"].startswith("urn:greentrain:config:")


def test_every_key_is_there_with_its_meaning() -> None:
    def keys(cls: type, where: str) -> Iterator[str]:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            options = typing.get_args(hints[field.name]) or (hints[field.name],)
            inner = [option for option in options if dataclasses.is_dataclass(option)]
            if inner:
                assert isinstance(inner[0], type)
                yield from keys(inner[0], f"{where}{field.name}.")
            else:
                yield where + field.name

    assert set(LEAVES) == set(keys(GreenConfig, ""))
    assert [key for key, found in LEAVES.items() if not found["description"]] == []


def test_every_number_has_bounds() -> None:
    free = {key for key, found in LEAVES.items() for part in _numbers(found) if "minimum" not in part}
    assert free == {"policy.seed"}, "give these a Bound in their annotation"


def test_bounds_and_choices_are_those_of_the_checks() -> None:
    assert (LEAVES["run.book_s"]["minimum"], LEAVES["run.book_s"]["maximum"]) == (0.1, 10)
    assert LEAVES["carbon.embodied_kg"]["additionalProperties"]["maximum"] == 1e7
    pairs = LEAVES["policy.schedule"]["anyOf"][0]["items"]
    assert pairs["prefixItems"][1]["enum"] == ["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
    assert LEAVES["actuators.power_cap.fractions"]["minItems"] == 1


def test_the_page_is_what_the_code_says_now() -> None:
    path = ROOT / "docs" / "make_configuration.py"
    spec = importlib.util.spec_from_file_location("make_configuration", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.made(page) == page, "run: python docs/make_configuration.py"
    assert HEADER in page and FILE in page
    for key in LEAVES:
        assert f"| `{key}` |" in page


def test_the_example_of_the_page_is_right() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    example = page.partition("```yaml\n")[2].partition("```")[0]
    assert GreenConfig.load(yaml.safe_load(example)).policy.name == "mpc"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"carbon": {"zone": "FR", "pue": 1.3}, "policy": {"budget_g": 1e-6}, "run": {"tags": {"a": "x: 'y' # z"}}},
        {"power": {"meters": ["null"]}, "actuators": {"power_cap": {}, "width": {"max": 8}}},
        {"precision": {"gears": ["bf16"]}, "policy": {"name": "scripted", "schedule": [[0, "bf16"]]}},
    ],
)
def test_what_is_shown_can_be_loaded(config: Mapping[str, Any]) -> None:
    loaded = GreenConfig.load(config)
    text = commented_yaml(loaded)
    assert GreenConfig.load(yaml.safe_load(text)) == loaded
    assert text.startswith(HEADER)
    for key in LEAVES:
        section = key.split(".")[-2]
        if section not in ("power_cap", "clocks", "width", "demand", "prometheus", "otel", "price", "water"):
            assert f"{key.split('.')[-1]}: " in text, key


def _comments(text: str) -> dict[str, str]:
    """Return what stands above each key of a configuration that is shown."""
    found: dict[str, str] = {}
    above: list[str] = []
    names: list[str] = []
    for line in text.splitlines():
        bare = line.lstrip()
        if bare.startswith("#"):
            above.append(bare.lstrip("# "))
            continue
        names[(len(line) - len(bare)) // 2 :] = [bare.partition(":")[0]]
        found[".".join(names)], above = " ".join(above), []
    return found


def test_what_is_shown_names_every_bound_and_choice() -> None:
    config: dict[str, Any] = {
        "actuators": {"power_cap": {}, "clocks": {}, "width": {}, "demand": {}},
        "price": {"per_kwh": 0.3},
        "water": {},
        "export": {"prometheus": {}, "otel": {}},
    }
    comments = _comments(commented_yaml(GreenConfig.load(config)))
    for key, found in LEAVES.items():
        bounds = [f"{part['minimum']:g}" for part in _numbers(found) if "minimum" in part]
        wanted = [*_words(found), *(bounds if key != "policy.schedule" else ())]
        assert [word for word in wanted if word not in comments[key]] == [], key


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "green.yaml"
    url = "pue_prometheus_url: 'http://me:hunter2@host', pue_prometheus_query: pue"
    path.write_text(f"carbon: {{{url}}}\nrun: {{tags: {{api_key: hunter2}}}}\n", encoding="utf-8")
    for option in ([], ["--json"]):
        shown = RUNNER.invoke(app, ["config", "show", *option, str(path)])
        assert shown.exit_code == 0 and "hunter2" not in shown.output and "http://***@host" in shown.stdout
        assert "secret is shown as ***" in shown.stderr and "secret" not in shown.stdout
    assert RUNNER.invoke(app, ["config", "show"]).stderr == ""


def test_what_differs_is_shown_beside_its_default(tmp_path: Path) -> None:
    path = tmp_path / "green.yaml"
    path.write_text("carbon: {pue: 1.3}\n", encoding="utf-8")
    shown = RUNNER.invoke(app, ["config", "show", str(path)])
    assert shown.exit_code == 0 and "pue: 1.3" in shown.output and "1 to 5. Default: 1.0." in shown.output
    as_json = RUNNER.invoke(app, ["config", "show", "--json", str(path)])
    assert json.loads(as_json.output)["carbon"]["pue"] == 1.3


def test_check_says_what_is_wrong_of_each_file(tmp_path: Path) -> None:
    right, wrong, rule = (tmp_path / name for name in ("right.yaml", "wrong.yaml", "rule.yaml"))
    right.write_text("carbon: {zone: FR}\n", encoding="utf-8")
    wrong.write_text("carbon: {zoned: FR}\n", encoding="utf-8")
    rule.write_text("policy: {name: mpc}\n", encoding="utf-8")
    fine = RUNNER.invoke(app, ["config", "check", str(right)])
    assert fine.exit_code == 0 and fine.output == f"{right}: fine\n"
    found = RUNNER.invoke(app, ["config", "check", str(wrong), str(right), str(rule), str(tmp_path / "none.yaml")])
    assert found.exit_code == 2
    assert "Did you mean 'zone'?" in found.output and "policy.tokens" in found.output
    assert f"{right}: fine" in found.output and "none.yaml: No such file" in found.output
    nowhere, keyless = tmp_path / "nowhere.yaml", tmp_path / "keyless.yaml"
    nowhere.write_text("carbon: {zone: CAISO}\n", encoding="utf-8")
    keyless.write_text("carbon: {signal: watttime, zone: CAISO_NORTH}\n", encoding="utf-8")
    placed = RUNNER.invoke(app, ["config", "check", str(nowhere), str(keyless)])
    assert placed.exit_code == 2 and "CAISO" in placed.output and f"{keyless}: fine" in placed.output


@pytest.mark.parametrize(
    ("carbon", "word"),
    [
        ("signal: watttime", "needs carbon.zone"),
        ("signal: gb, zone: FR", "not in Great Britain"),
        ("signal: gb, zone: GB, fallback: [gb]", "names a signal twice"),
        ("signal: gb, zone: GB, fallback: [trace]", "carbon.trace_csv"),
        ("signal: watttime, zone: CAISO_NORTH, fallback: [electricity_maps]", "CAISO_NORTH"),
    ],
)
def test_check_judges_signals_that_need_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carbon: str, word: str
) -> None:
    pytest.importorskip("httpx")
    for variable in ("ELECTRICITY_MAPS_TOKEN", "WATTTIME_USER", "WATTTIME_PASSWORD"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "green.yaml"
    path.write_text(f"carbon: {{{carbon}}}\n", encoding="utf-8")
    found = RUNNER.invoke(app, ["config", "check", str(path)])
    assert found.exit_code == 2 and word in found.output


def test_the_schema_is_printed_or_written(tmp_path: Path) -> None:
    assert json.loads(RUNNER.invoke(app, ["config", "schema"]).output) == SCHEMA
    path = tmp_path / FILE
    assert RUNNER.invoke(app, ["config", "schema", "--out", str(path)]).exit_code == 0
    assert json.loads(path.read_text(encoding="utf-8")) == SCHEMA
    assert RUNNER.invoke(app, ["config", "docs"]).output == reference()
    refused = RUNNER.invoke(app, ["config", "schema", "--out", str(tmp_path / "none" / FILE)])
    assert refused.exit_code == 2 and "cannot write" in refused.stderr


def test_show_names_a_wrong_file(tmp_path: Path) -> None:
    path = tmp_path / "green.yaml"
    path.write_text("power: {sample_s: 99}\n", encoding="utf-8")
    shown = RUNNER.invoke(app, ["config", "show", str(path)])
    assert shown.exit_code == 2 and "between 0.005 and 10" in shown.output
