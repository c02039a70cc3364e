"""Every wrong key and value is refused with what, where, bound and remedy."""

from pathlib import Path
from typing import Any

import pytest

from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError


def test_defaults_measure_only() -> None:
    config = GreenConfig.load(None)
    assert config.carbon.zone == "world"
    assert config.power.meters == "auto"


def test_yaml_and_mapping_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "green.yaml"
    path.write_text(
        "run: {dir: out, tags: {team: a}}\npower:\n  meters: [rapl, cpu_model]\ncarbon: {zone: FRA, pue: 2}\n"
    )
    mapping = {
        "run": {"dir": "out", "tags": {"team": "a"}},
        "power": {"meters": ["rapl", "cpu_model"]},
        "carbon": {"zone": "FRA", "pue": 2.0},
    }
    assert GreenConfig.load(path) == GreenConfig.load(str(path)) == GreenConfig.load(mapping)


def test_widths_are_those_that_divide_the_batch() -> None:
    def widths(**width: int) -> tuple[int, ...]:
        found = GreenConfig.load({"actuators": {"width": width}}).actuators.width
        assert found is not None
        return found.widths

    assert widths(min=1, max=6) == (1, 2, 3, 4, 5, 6)
    assert widths(min=1, max=40) == (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 40)
    assert widths(min=2, max=40, global_batch=48) == (2, 3, 4, 6, 8, 16)


def test_nothing_is_exported_unless_asked() -> None:
    assert GreenConfig.load(None).export.prometheus is None and GreenConfig.load({"export": {}}).export.otel is None
    page = GreenConfig.load({"export": {"prometheus": {}}}).export.prometheus
    assert page is not None and (page.host, page.port) == ("127.0.0.1", 9464)
    for host in ("localhost", "127.0.0.7", "::1"):
        GreenConfig.load({"export": {"prometheus": {"host": host}}})
    GreenConfig.load({"export": {"prometheus": {"host": "0.0.0.0", "token_file": "t"}, "otel": {"endpoint": None}}})


@pytest.mark.parametrize("text", ["2.0e9", "2e9", "2.0e+9", "2000000000", "2_000_000_000"])
def test_a_number_may_be_written_with_an_exponent(tmp_path: Path, text: str) -> None:
    path = tmp_path / "green.yaml"
    path.write_text(f"policy: {{name: mpc, tokens: {text}, deadline_h: 36}}\n")
    assert GreenConfig.load(path).policy.tokens == 2e9


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("carbon: {zone: NO}", ("carbon", "zone", "NO")),
        ("run: {tags: {a: yes, b: 2024-13-45}}", ("run", "tags", {"a": "yes", "b": "2024-13-45"})),
        ("run: {live: no}", ("run", "live", False)),
        ("run: {live: On}", ("run", "live", True)),
        ("run: {live: False}", ("run", "live", False)),
        ("run: {name: true-north}", ("run", "name", "true-north")),
        (
            "carbon: {signal: typical, replay_start: 2022-06-01T00:00:00Z}",
            ("carbon", "replay_start", "2022-06-01T00:00:00Z"),
        ),
        ("run: {<<: {name: base, live: false}, name: own}", ("run", "name", "own")),
    ],
)
def test_words_and_dates_are_text_as_in_yaml_1_2(tmp_path: Path, text: str, found: tuple[str, str, Any]) -> None:
    path = tmp_path / "green.yaml"
    path.write_text(text, encoding="utf-8")
    section, key, value = found
    assert getattr(getattr(GreenConfig.load(path), section), key) == value


def test_a_schedule_may_come_from_json() -> None:
    for schedule in ({"0": "bf16", "10": "fp8"}, [[0.0, "bf16"], [10.0, "fp8"]]):
        config = {"precision": {"gears": ["bf16", "fp8"]}, "policy": {"name": "scripted", "schedule": schedule}}
        assert GreenConfig.load(config).policy.schedule == ((0, "bf16"), (10, "fp8"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"carbn": {}}, ["carbn", "Did you mean 'carbon'"]),
        ({"carbon": {"zon": "FR"}}, ["carbon.zon", "zone"]),
        ({"carbon": {"pue": 0.5}}, ["carbon.pue", "0.5", "between 1 and 5"]),
        ({"carbon": {"relative_error": 10}}, ["carbon.relative_error", "10", "between 0 and 1"]),
        ({"carbon": {"pue_relative_error": -0.1}}, ["carbon.pue_relative_error", "-0.1", "between 0 and 1"]),
        ({"carbon": {"pue": float("nan")}}, ["carbon.pue", "nan"]),
        ({"carbon": {"signal": "trace"}}, ["trace_csv"]),
        ({"carbon": {"signal": "typical", "g_per_kwh": 100}}, ["g_per_kwh", "typical"]),
        ({"carbon": {"g_per_kwh": -1}}, ["g_per_kwh", "-1"]),
        ({"power": {"meters": ["rapel"]}}, ["rapel", "Did you mean 'rapl'"]),
        ({"power": {"meters": []}}, ["empty"]),
        ({"power": {"meters": ["replay"]}}, ["replay_csv"]),
        ({"power": {"sample_s": 0}}, ["power.sample_s", "0.005"]),
        ({"power": {"sample_s": "fast"}}, ["power.sample_s", "fast"]),
        ({"power": {"sample_s": True}}, ["power.sample_s", "True"]),
        ({"run": {"name": "../x"}}, ["run.name", "../x"]),
        ({"run": {"id": ""}}, ["run.id"]),
        ({"run": {"book_s": 60}}, ["run.book_s", "10"]),
        ({"run": {"estimate": 3}}, ["run.estimate", "3", "expected str"]),
        ({"run": 3}, ["run", "section"]),
        ({"actuators": {"power_cap": {"fractions": [0.8]}}}, ["power_cap.fractions", "must hold 1.0"]),
        ({"actuators": {"power_cap": {"fractions": [1.0, 1.4]}}}, ["power_cap.fractions", "1.4", "between 0.05 and 1"]),
        ({"actuators": {"power_cap": {"fractions": [1.0, "low"]}}}, ["power_cap.fractions[1]", "low"]),
        ({"actuators": {"power_cap": {"fraction": [1.0]}}}, ["power_cap.fraction", "Did you mean 'fractions'"]),
        ({"actuators": {"power_cap": {"objective": "money"}}}, ["power_cap.objective", "money", "energy"]),
        ({"actuators": {"clocks": {"stall_share": 0.05}}}, ["calm_share", "below stall_share"]),
        ({"export": {"promtheus": {}}}, ["export.promtheus", "Did you mean 'prometheus'"]),
        ({"export": {"prometheus": {"port": 65536}}}, ["export.prometheus.port", "65536", "between 0 and 65535"]),
        ({"export": {"prometheus": {"host": "0.0.0.0"}}}, ["export.prometheus.host", "0.0.0.0", "token_file"]),
        ({"export": {"prometheus": {"host": "node7"}}}, ["export.prometheus.host", "node7", "token_file"]),
        ({"export": {"prometheus": {"host": ""}}}, ["export.prometheus.host is empty", "127.0.0.1"]),
        ({"export": {"otel": {"endpoint": "localhost:4318"}}}, ["export.otel.endpoint", "http://127.0.0.1:4318"]),
        ({"export": {"otel": {"endpoint": "http://me:pw@host"}}}, ["endpoint", "OTEL_EXPORTER_OTLP_HEADERS"]),
        ({"export": {"otel": {"interval_s": 0}}}, ["export.otel.interval_s", "0", "between 1 and 3600"]),
        ({"actuators": {"width": {"min": 0}}}, ["actuators.width.min", "0", "between 1"]),
        ({"actuators": {"width": {"min": 4, "max": 2}}}, ["actuators.width.min", "4", "above max"]),
        ({"actuators": {"width": {"min": 2, "max": 3, "global_batch": 7}}}, ["global_batch", "7", "divides"]),
        ({"carbon": {"pue_prometheus_url": "http://x"}}, ["pue_prometheus_url", "go together"]),
        ({"policy": {"tokens": 10**400}}, ["policy.tokens", "1000", "below 1.8e+308"]),
        ({"actuators": {"width": {"min": 10**400}}}, ["actuators.width.min", "1000", "between 1 and 1e+06"]),
        ({"export": {"otel": {"endpoint": "http://[::1"}}}, ["export.otel.endpoint", "[::1", "write a URL"]),
        ({"power": {"meters": ["rapl", None]}}, ["power.meters", "None", "str or list of str"]),
        ({"precision": {"gears": "bf16"}}, ["precision.gears", "bf16", "list of str"]),
        ({"precision": {"gears": ["bf16", 8]}}, ["precision.gears[1] is 8"]),
        ({"run": {"name": 12}}, ["run.name is 12", "put text in quotes"]),
        ({"policy": {"schedule": {"-1": "bf16"}}}, ["policy.schedule", "-1", "list of [step, gear]"]),
    ],
)
def test_bad_input(data: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        GreenConfig.load(data)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["http://me:hunter2@host", "me:hunter2@host", "//me:hunter2@host", "http://me:hunter2@[::1"]
)
def test_a_password_is_refused_and_not_repeated(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        GreenConfig.load({"export": {"otel": {"endpoint": endpoint}}})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"a: [", "not valid YAML: line 1, column 5"),
        (b"- 1", "expected sections"),
        (None, "cannot read"),
        (b"carbon: {zone: FR}\ncarbon: {pue: 1.2}\n", "line 2, column 1: the key 'carbon' is there twice"),
        (b"carbon: {zone: FR, zone: DE}\n", "the key 'zone' is there twice"),
        ("run: {name: caf\xe9}".encode("latin-1"), "byte 16 is no UTF-8; save it as UTF-8"),
        ("run: {name: a}".encode("utf-16"), "no UTF-8"),
        (b"policy: {seed: " + b"1" * 5000 + b"}", "not valid YAML"),
        (b"run: " + b"[" * 3000, "not valid YAML"),
        (b"run: {name: !!timestamp 2024-13-45}", "not valid YAML"),
    ],
)
def test_bad_files_are_named_in_a_line(tmp_path: Path, content: bytes | None, word: str) -> None:
    path = tmp_path / "green.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=word) as caught:
        GreenConfig.load(path)
    assert "green.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_a_path_that_no_file_has_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        GreenConfig.load("a\0b")
