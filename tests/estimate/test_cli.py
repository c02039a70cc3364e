import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.cli.app import app
from greentrain.estimate.hours import METHODS
from greentrain.ledger.reader import read_run
from greentrain.policy.action_table import Action, declared
from greentrain.report.html import render_html
from greentrain.report.summary import summarize
from greentrain.types import Device, DeviceKind, Gear, PowerSample, Provenance, Sensor
from tests.report import run_folders

RUN = ("--config", "llama-3-8b", "--tokens", "15e12", "--device", "h100", "--count", "1024", "--zone", "US-CAL-CISO")


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["estimate", *words], env={"COLUMNS": "200", "TERM": "dumb"})


def _told(*words: str) -> dict[str, object]:
    result = _run(*words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_software_of_an_earlier_year_is_slower() -> None:
    hours = {year: _told(*RUN, "--method", "mfu", "--year", year)["gpu_hours"] for year in ("2021", "2024")}
    assert hours["2021"]["mid"] > 1.2 * hours["2024"]["mid"]  # type: ignore[index]
    refused = _run(*RUN, "--year", "21")
    assert refused.exit_code == 2
    assert "year is 21" in refused.stderr


def test_the_line_of_the_readme_prints_ranges_relations_and_assumptions() -> None:
    result = _run(*RUN)
    assert result.exit_code == 0, result.output
    for words in ("llama-3-8b, 15 T tokens", "1024 x H100-SXM", "Device-hours", "market-based", "In CA-QC", "With FP8"):
        assert words in result.stdout
    assert "assumed" in result.stdout and "Bounds" in result.stdout


def test_json_and_page_are_written_and_say_the_same(tmp_path: Path) -> None:
    page = tmp_path / "estimate.html"
    told = _told(*RUN, "--html", str(page), "--price-hour", "2.5", "--embodied", "act", "--pue", "1.2")
    assert told["method"] in METHODS and told["count"] == 1024
    assert "1024 x H100-SXM" in page.read_text(encoding="utf-8")


def test_a_config_json_of_the_hub_is_a_model(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    by_folder, by_name = (_told("--config", name, *RUN[2:]) for name in (str(tmp_path), "llama-3-8b"))
    assert by_folder["gpu_hours"] == pytest.approx(by_name["gpu_hours"], rel=0.01)


def test_parameters_alone_are_enough_for_the_table_of_utilisations() -> None:
    told = _told("--parameters", "8e9", "--tokens", "1e12", "--device", "a100", "--limit-h", "100", "--g-per-kwh", "50")
    assert told["embodied_g"] is not None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--config", "llama-3-8b", "--device", "h100"), "give --tokens"),
        ((*RUN[:4], *RUN[6:]), "give --device"),
        (RUN[2:], "give the model, one of: --config"),
        ((*RUN, "--parameters", "8e9"), "--parameters and --config both say which model it is: give one"),
        ((*RUN, "--active", "8e9"), "--active goes with --parameters"),
        (
            ("--parameters", "8e9", "--active", "9e9", *RUN[2:]),
            "--active is 9e+09; it must be above 0 and at most 8e+09",
        ),
        ((*RUN, "--layers", "3"), "so --layers cannot correct it"),
        (("--layers", "3", *RUN[2:]), "--d-model, --heads, --d-ff, --vocabulary missing beside --layers"),
        (("--config", "llama-3-9b", *RUN[2:]), "Did you mean 'llama-3-8b'"),
        (("--config", "nowhere/config.json", *RUN[2:]), "nowhere/config.json cannot be read: No such file"),
        (("--config", "llama-3-8b", "--tokens", "0", *RUN[4:]), "--tokens is 0.0; it must be between 1 and 1e+18"),
        ((*RUN[:4], "--device", "H101", *RUN[6:]), "Did you mean"),
        ((*RUN[:6], *RUN[8:]), "give either --count (how many devices) or --limit-h"),
        ((*RUN, "--limit-h", "3"), "give either --count (how many devices) or --limit-h"),
        ((*RUN[:6], "--count", "0", *RUN[8:]), "--count is 0; it must be between 1 and"),
        (
            (*RUN[:6], "--count", "5000000", *RUN[8:]),
            "--count is 5000000 devices; 977 sequences a batch through 32 layers",
        ),
        ((*RUN[:6], "--limit-h", "0", *RUN[8:]), "--limit-h is 0.0; it must be between 0.001"),
        ((*RUN[:6], "--limit-h", "0.01", *RUN[8:], "--method", "mfu"), "give more hours, or a larger --batch"),
        ((*RUN, "--batch", "10"), "--batch is 10.0; it must be between 4096"),
        ((*RUN[:8], "--zone", "Frankreich"), "--zone 'Frankreich' is in none of the tables; the nearest are"),
        (RUN[:8], "give one of --zone, --g-per-kwh and --trace-csv"),
        ((*RUN, "--g-per-kwh", "50"), "give one of --zone, --g-per-kwh and --trace-csv"),
        ((*RUN[:8], "--g-per-kwh", "-1"), "--g-per-kwh is -1.0; it must be between 0 and 5000"),
        (
            (*RUN[:8], "--trace-csv", "/nowhere.csv"),
            "cannot read the trace /nowhere.csv: No such file or directory; check --",
        ),
        (
            (*RUN, "--precision", "bf17"),
            "--precision is 'bf17'; known: fp32, bf16, fp16, fp8, mxfp8, nvfp4. Did you mean 'bf16'",
        ),
        ((*RUN, "--start", "tomorrow"), "--start is 'tomorrow'; write it as ISO 8601"),
        ((*RUN, "--method", "bland"), "Did you mean 'blend'"),
        ((*RUN, "--method", "pilot"), "--method pilot needs --pilot"),
        ((*RUN, "--pilot", "runs/x", "--method", "mfu"), "--pilot is for --method pilot, but --method is mfu"),
        ((*RUN, "--pilot", "/nowhere"), "/nowhere does not exist; give the folder of one run"),
        (("--parameters", "8e9", *RUN[2:], "--method", "roofline"), "--method roofline needs layers and widths"),
        (("--parameters", "8e9", *RUN[2:], "--method", "blend"), "give --config or --layers"),
        ((*RUN, "--pue", "0.9"), "--pue is 0.9; it must be between 1 and 5"),
        ((*RUN, "--node-w", "-5"), "--node-w is -5.0; it must be"),
        ((*RUN, "--market-g-per-kwh", "-5"), "--market-g-per-kwh is -5.0"),
        ((*RUN, "--infrastructure", "nan"), "--infrastructure is nan; it must be between 0 and 2"),
        ((*RUN, "--price-hour", "inf"), "--price-hour is inf; it must be between 0"),
        ((*RUN, "--embodied", "lce"), "--embodied is 'lce'; known: lca, act. Did you mean 'lca'"),
        ((*RUN, "--into", "."), "--into . is no run folder: it has no run.json; name one"),
        (
            (*RUN, "--html", "/nowhere/x.html"),
            "--html /nowhere/x.html cannot be written: there is no folder /nowhere; make",
        ),
        ((*RUN, "--actions", "/"), "--actions / is a folder: name a file in it"),
    ],
)
def test_wrong_input_is_one_line_and_2(words: tuple[str, ...], says: str) -> None:
    result = _run(*words)
    assert result.exit_code == 2
    assert says in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "grid.csv:1: the columns are ['a', 'b']; a trace needs 'timestamp_utc' and 'g_per_kwh'"),
        ("timestamp_utc,g_per_kwh\n2026-01-01T00:00Z,abc\n", "grid.csv:2: g_per_kwh is 'abc', not a number"),
        ("timestamp_utc,g_per_kwh\n2026-01-01T00:00Z,9\n2026-01-01T01:00Z,9\n", "the trace has 2026-01-01T00:00Z to"),
    ],
)
def test_a_trace_that_is_wrong_or_too_short_is_said(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "grid.csv"
    path.write_text(text, encoding="utf-8")
    result = _run(*RUN[:8], "--trace-csv", str(path), "--start", "2026-01-01T00:30Z")
    assert result.exit_code == 2 and says in result.stderr and result.stderr.count("\n") == 1


def test_flags_are_a_model_and_correct_a_config_json(tmp_path: Path) -> None:
    flags = ("--layers", "32", "--d-model", "4096", "--heads", "32", "--kv-heads", "8", "--vocabulary", "128256")
    whole, named = _told(*flags, "--d-ff", "14336", *RUN[2:]), _told(*RUN)
    assert whole["gpu_hours"] == pytest.approx(named["gpu_hours"]) and whole["method"] == named["method"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "intermediate_size": 14336, "num_hidden_layers": 30}))
    told = _told("--config", str(path), *flags, *RUN[2:])
    assert told["gpu_hours"] == pytest.approx(named["gpu_hours"])
    assert "--layers 32 is taken in place of num_hidden_layers 30" in told["warnings"]  # type: ignore[operator]
    two = _told(*flags, "--d-ff", "14336", "--no-gated", "--tied", *RUN[2:])
    assert two["inputs"]["parameters_total"] < 0.8 * whole["inputs"]["parameters_total"]  # type: ignore[index]


def test_the_method_is_passed_on_and_auto_says_which_it_took() -> None:
    batch = ("--batch", "8e6")
    assert _told(*RUN, *batch)["method"] == "blend"
    for method in ("mfu", "roofline", "blend"):
        assert _told(*RUN, *batch, "--method", method)["method"] == method
    assert _told("--parameters", "8e9", *RUN[2:])["method"] == "mfu"


def test_the_precision_is_the_devices_where_nobody_names_one() -> None:
    rest = (*RUN[6:],)
    old = _told(*RUN[:4], "--device", "v100", *rest)
    assert old["inputs"]["workload"]["precision"] == "fp16"  # type: ignore[index]
    assert "V100-16GB has no bf16: fp16 is taken" in old["warnings"]  # type: ignore[operator]
    assert _told(*RUN)["inputs"]["workload"]["precision"] == "bf16"  # type: ignore[index]


def test_a_pue_that_is_given_is_exact_and_one_that_is_not_is_a_range() -> None:
    widths = {}
    for name, words in {"given": ("--pue", "1.1"), "default": ()}.items():
        energy = _told(*RUN, *words)["energy_kwh"]
        assert isinstance(energy, dict)
        widths[name] = energy["facility"]["high"] / energy["it"]["high"]
    assert widths["given"] == pytest.approx(1.1) and widths["default"] > 1.1
    shown = _run(*RUN, "--pue", "1.1").stdout
    assert "1.08 to 1.2" in _run(*RUN).stdout and "1.08 to 1.2" not in shown and "PUE 1.1" in shown


def test_a_plan_takes_the_estimates_actions(tmp_path: Path) -> None:
    file = tmp_path / "actions.yaml"
    told = _told(*RUN, "--actions", str(file))
    table = declared(file)
    assert {(str(a.gear), a.ranks) for a in table.actions} == {
        (g, n) for g in ("bf16", "fp8") for n in (1024, 512, 256)
    }
    whole = table.of(Action(gear=Gear.BF16, ranks=1024))
    assert whole is not None and whole.tokens_per_s is not None and whole.provenance == "assumed"
    hours = told["duration_h"]
    assert isinstance(hours, dict)
    assert whole.tokens_per_s.mean * hours["mid"] * 3600 == pytest.approx(15e12, rel=1e-3)


def test_a_report_holds_the_estimate_to_what_was_measured(tmp_path: Path) -> None:
    folder = run_folders.one_rank(tmp_path, tokens=5000)
    before = summarize(read_run(folder))
    assert before["estimate"] is None and 'id="estimate"' not in render_html(before, None)
    trained = before["work"]["tokens"]
    words = ("--parameters", "1e9", "--tokens", str(2 * trained), *RUN[4:6], "--count", "1", "--g-per-kwh", "400")
    (tmp_path / "victim").write_text("mine", encoding="utf-8")
    (folder / "estimate.json").symlink_to(tmp_path / "victim")  # the folder may be anybody's
    assert _run(*words, "--into", str(folder)).exit_code == 0
    assert (tmp_path / "victim").read_text(encoding="utf-8") == "mine"
    summary = summarize(read_run(folder))
    found = summary["estimate"]
    assert found["trained_share"] == pytest.approx(0.5)
    energy = found["figures"]["energy_j"]
    told = json.loads((folder / "estimate.json").read_text(encoding="utf-8"))
    assert energy["mid"] == pytest.approx(told["energy_kwh"]["it"]["mid"] * 3.6e6 / 2)
    assert energy["ratio"] == pytest.approx(summary["energy"]["energy_j"] / energy["mid"])
    assert energy["within"] is False  # the test's run has made-up watts
    assert 'id="estimate"' in render_html(summary, None)
    (folder / "estimate.json").write_text('{"inputs": 3}', encoding="utf-8")
    assert summarize(read_run(folder))["estimate"] is None


def test_a_pilot_forecasts_the_long_run_by_its_own_watts(tmp_path: Path) -> None:
    clock = _Clock()
    config = {"run": {"dir": str(tmp_path), "report": False}, "power": {"sample_s": 10.0}}
    with GreenSession(config, meter=_Meter(clock), signal=ConstantSignal(360.0), clock=clock) as green:
        for _ in range(40):
            clock.t_s += 0.5
            green.step(tokens=4096)
    words = ("--parameters", "8e9", "--tokens", "8.192e9", *RUN[4:6], "--count", "1", "--g-per-kwh", "100")
    told = _told(*words, "--pilot", str(green.folder))
    hours, watts = told["gpu_hours"], told["node_w"]
    assert told["method"] == "pilot" and isinstance(hours, dict) and isinstance(watts, dict)
    assert hours["mid"] == pytest.approx(1e6 / 3600, rel=0.02)
    assert 600.0 + 0.35 * 700 < watts["mid"] < 600.0 + 0.55 * 700  # read from the GPU, its server by the model
    warnings = told["warnings"]
    assert isinstance(warnings, list) and any("ran on A100-80GB" in warning for warning in warnings)
    result = _run("--parameters", "8e12", *words[2:], "--pilot", str(green.folder))
    assert result.exit_code == 2 and "the peak" in result.stderr


class _Clock:
    """Time passes when the training says so."""

    t_s = 1000.0

    def monotonic_s(self) -> float:
        return self.t_s

    def unix_s(self) -> float:
        return self.t_s + 1.7e9


class _Meter:
    """A GPU of 600 W."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        gpu = Device(uid="GPU-a", kind=DeviceKind.GPU, name="NVIDIA A100-SXM4-80GB")
        self.sensors = [Sensor(device=gpu, provenance=Provenance.MEASURED, method="counter", period_s=0.02)]

    def read(self) -> list[PowerSample]:
        t_s = self._clock.t_s
        return [PowerSample(device_uid="GPU-a", t_s=t_s, energy_j=600.0 * t_s)]

    def close(self) -> None:
        pass
