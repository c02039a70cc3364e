"""No secret is written down, no name leads elsewhere, nothing foreign is run, and servers ask who is there."""

import ast
import base64
import contextlib
import csv
import http.client
import inspect
import io
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from greentrain.config.schema import GreenConfig, PrometheusConfig
from greentrain.control.launch.outcome import JobFolder, JobState
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.fpga_backend.devices.null_device import NullDevice
from greentrain.fpga_backend.remote.server import serve
from greentrain.ledger.reader import read_run
from greentrain.ledger.run_folder import ENV_RUN_ID
from greentrain.power import claims
from greentrain.power.claims import Claims
from greentrain.report import compare, table
from greentrain.report.live.terminal import live_text
from greentrain.report.summary import summarize
from greentrain.session.session import GreenSession
from greentrain.types import CarbonPoint, Topology
from greentrain.utils import redact
from greentrain.utils.files import write_json
from greentrain.utils.http_access import token_of
from tests.helpers.flat_meter import FlatMeter
from tests.report.run_folders import write_report

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "tests" / "data" / "run-format-1"
FOLDERS = ("greentrain", "callbacks", "fpga_backend", "optim", "recipes")
SOURCES = sorted({path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")})
SECRET = "s3cr3t-Value-0123456789"
OWN_CELLS = {("notebook.py", "exec"), ("notebook.py", "eval"), ("session.py", "exec")}
"""The cell that its user has just asked to be run; two words of our own, that set a flag of the interpreter."""
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}}[/bold][red]"


# -- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["--api-key", SECRET],
        [f"--api-key={SECRET}"],
        [f"--hub_token={SECRET}", "--lr", "0.1"],
        ["--hf-token", SECRET],
        ["--wandb_key", SECRET],
        ["--auth-token", SECRET],
        ["--password", SECRET],
        ["--db.password", SECRET],
        [f"trainer.logger.api_key={SECRET}"],
        [f"+wandb.api_key={SECRET}"],
        [f"WANDB_API_KEY={SECRET}", "python", "x.py"],
        ["--client-secret", SECRET],
        ["--header", f"Authorization: Bearer {SECRET}"],
        ["-H", f"Authorization: Basic {base64.b64encode(SECRET.encode()).decode()}"],
        ["--header", f"X-Api-Key: {SECRET}"],
        ["-H", f"x-goog-api-key:  {SECRET}"],
        ["--header", f"Cookie: session={SECRET}; id={SECRET}"],
        [f"--header=Ocp-Apim-Subscription-Key: {SECRET}"],
        [f"--api_keys={SECRET}"],
        ["--api-keys", SECRET],
        [f"--pass={SECRET}"],
        ["--db-pass", SECRET],
        [f"apiKey={SECRET}"],
        ["--clientSecret", SECRET],
        ["-c", f"export WANDB_API_KEY={SECRET}; python x.py"],
        ["--reward.remote_url", f"http://any:{SECRET}@host:8700/get_reward"],
        ["--tracking-uri", f"https://{SECRET}@mlflow.example/api"],
        ["--url", f"https://host.example/x?user=1&token={SECRET}&z=2"],
        ["--url", f"https://bucket.example/x?X-Amz-Signature={SECRET}"],
        ["--kwargs", json.dumps({"api_key": SECRET, "lr": 0.1})],
        ["--kwargs", str({"password": SECRET})],
        ["--model", "hf_AbCdEfGhIjKlMnOpQrStUvWx"],
        ["sk-proj-AbCdEfGhIjKlMnOp"],
        ["--registry", "npm_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"],
        ["--maps", "AIzaAbCdEfGhIjKlMnOpQrStUvWxYz012345678"],
        ["--nim", "nvapi-AbCdEfGhIjKlMnOp"],
    ],
)
def test_a_command_is_kept_without_its_secrets(argv: list[str]) -> None:
    shown = " ".join(redact.arguments(["train.py", *argv, "--epochs", "3"]))
    for secret in (SECRET, base64.b64encode(SECRET.encode()).decode(), "AbCdEfGhIjKl"):
        assert secret not in shown
    assert redact.HIDDEN in shown and shown.startswith("train.py ") and shown.endswith("--epochs 3")


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "train.py", "--lr=1e-4", "--tokens", "1000", "--max-tokens=5", "--token-file", "t", "-p", "8"],
        ["--pad_token", "<pad>", "--eos-token=</s>", "--tokenizer", "gpt2", "--key-size=64", "--monkey", "x"],
        ["--sort-key", "loss", "--url", "http://host:9090/x?y=1", "note=basic training", "--author", "ann"],
        ["--config", '{"lr": 0.1, "tokens": 5}', "user@host:path", "--", "a=b=c", "--use-auth", "--passes", "3"],
        ["--two-pass", "1", "--single_pass=true", "note: a pass over data", "zone:FRA", "--num-passes=2"],
        ["--cmd", "export LR=1; python x.py --tokens=5 && echo key: none", "C:\\data", "time 12:30"],
    ],
)
def test_a_command_without_secrets_is_kept_whole(argv: list[str]) -> None:
    kept = list(argv)
    if "--use-auth" in kept:  # in doubt, and followed by another option: nothing is lost
        assert redact.arguments(kept) == kept
    assert redact.arguments(argv) == argv


@pytest.mark.parametrize("text", ["a.b-", "a://", "key: ", "a=b ", "'a':", "?token", " "])
def test_a_long_text_is_looked_through_once(text: str) -> None:
    assert redact.text(text * 30_000) == text * 30_000  # minutes, if it were once for each of its places


@given(st.lists(st.text(max_size=20), max_size=6))
def test_any_command_keeps_its_number_of_words(argv: list[str]) -> None:
    assert len(redact.arguments(argv)) == len(argv)


@contextlib.contextmanager
def _all_that_is_said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collect every warning of the block, with the log at its most talkative level."""
    said: list[str] = []
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [str(warning.message) for warning in caught]
    said.append(caplog.text)


def _written(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_no_key_is_in_any_file_of_a_run_nor_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keys in the environment, the command and URLs; servers that refuse, so that errors are told, too."""
    for name in ("ELECTRICITY_MAPS_TOKEN", "WATTTIME_PASSWORD", "HF_TOKEN", "WANDB_API_KEY", "GREENTRAIN_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["train.py", f"--api-key={SECRET}", "--hub-token", SECRET, "--lr", "0.1"])

    def refuse(*args: object, **kwargs: object) -> socket.socket:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    config = {
        "run": {
            "dir": str(tmp_path / "runs"),
            "id": "one",
            "book_s": 0.2,
            "tags": {"wandb_api_key": SECRET, "team": "a"},
        },
        "power": {"sample_s": 0.02},
        "carbon": {
            "signal": "electricity_maps",
            "zone": "DE",
            "fallback": ["constant"],
            "pue_prometheus_url": f"http://ann:{SECRET}@127.0.0.1:9",
            "pue_prometheus_query": "pue",
        },
    }
    with _all_that_is_said(caplog) as said:
        with GreenSession(config, meter=FlatMeter(), topology=Topology()) as green:
            for _ in range(20):
                with green.phase("forward"):
                    pass
                green.step(tokens=10)
                green.energy(0.0, 0.0)
            state = json.dumps(green.state_dict())
        repr(green), repr(green.config.run)
    out, err = capfd.readouterr()
    files = _written(tmp_path)
    assert {"runs/one/run.json", "runs/one/rank-00000.jsonl", "runs/one/report.html"} <= files.keys()
    assert [name for name, text in files.items() if SECRET in text] == []
    assert SECRET not in "".join(said) + out + err + state
    run = json.loads(files["runs/one/run.json"])
    assert run["command"] == ["train.py", "--api-key=***", "--hub-token", "***", "--lr", "0.1"]
    assert run["tags"] == {"wandb_api_key": "***", "team": "a"}
    assert run["config"]["carbon"]["pue_prometheus_url"] == "http://***@127.0.0.1:9"
    assert green.config.carbon.pue_prometheus_url == f"http://ann:{SECRET}@127.0.0.1:9"


def test_a_password_in_a_prometheus_url_goes_into_a_header_and_into_no_log(caplog: pytest.LogCaptureFixture) -> None:
    httpx = pytest.importorskip("httpx")
    from threading import Event

    from greentrain.power.prometheus import PrometheusClient

    asked = []

    def answer(request: Any) -> Any:
        asked.append(request)
        return httpx.Response(200, json={"status": "success", "data": {"resultType": "scalar", "result": [1.0, "1.2"]}})

    client = PrometheusClient(f"http://ann:p%40{SECRET}@prom.example:9090/", transport=httpx.MockTransport(answer))
    with caplog.at_level(logging.DEBUG):
        client.query("pue", Event())
    client.close()
    assert base64.b64decode(asked[0].headers["authorization"].split()[1]).decode() == f"ann:p@{SECRET}"
    assert "prom.example:9090" in caplog.text and SECRET not in caplog.text and client.url == "http://prom.example:9090"


def test_a_wrong_url_is_told_without_its_password() -> None:
    from greentrain.ledger.pue import _place

    with pytest.raises(ConfigError) as error:
        _place(f"ftp://ann:{SECRET}@host")
    assert SECRET not in str(error.value) and "ftp://***@host" in str(error.value)


def test_the_launcher_keeps_the_command_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = JobFolder(tmp_path / "job")
        try:
            state = JobState(command=("python", "train.py", f"--api-key={SECRET}"), created_unix_s=1.0)
            assert folder.save(state) == ""
            saved = tmp_path / "job" / "state.json"
            assert saved.stat().st_mode & 0o777 == 0o600
            assert SECRET in saved.read_text(encoding="utf-8")  # it is started again with it
        finally:
            folder.close()
        write_json(tmp_path / "plain.json", {})
        assert (tmp_path / "plain.json").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


# -- names ----------------------------------------------------------------------------------------------------------

ELSEWHERE = ["../x", "a/b", "/etc/x", "..", ".", "", ".hidden", "a\\b", "a\0b", "a\nb", "a\x1b[2Jb"]


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("key", ["name", "id"])
def test_no_name_of_a_run_leads_elsewhere(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match="folder's name"):
        GreenConfig.load({"run": {key: name}})


@pytest.mark.parametrize("name", [n for n in ELSEWHERE if n and "\0" not in n])
def test_no_variable_leads_a_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(ENV_RUN_ID, name)
    meter = FlatMeter()
    with pytest.raises(ConfigError, match=r"\$GREENTRAIN_RUN_ID is .*folder's name"):
        GreenSession({"run": {"dir": str(tmp_path / "runs")}}, meter=meter).start()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [n for n in ELSEWHERE if n])
def test_no_checkpoint_leads_a_run_elsewhere(name: str) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint's GreenTrain state is .*folder's name"):
        GreenSession().load_state_dict({"format": 1, "run_id": name, "totals": {}})


@pytest.mark.parametrize("tag", ["../../x", "/etc/passwd", HOSTILE])
def test_a_tag_is_a_text_and_no_path(tmp_path: Path, tag: str) -> None:
    config = {"run": {"dir": str(tmp_path / "runs"), "id": "one", "tags": {tag: tag}}, "power": {"sample_s": 0.02}}
    with GreenSession(config, meter=FlatMeter(), topology=Topology()):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    assert json.loads((tmp_path / "runs/one/run.json").read_text(encoding="utf-8"))["tags"] == {tag: tag}


# -- pages and tables -----------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a run folder in which everything that somebody can name is named to do harm."""
    folder = shutil.copytree(FROZEN / "gears", tmp_path / "gears")
    inside = json.dumps(HOSTILE)[1:-1]
    for path in folder.glob("rank-*.jsonl"):
        text = path.read_text(encoding="utf-8")
        for name in (
            "Example CPU",
            "NVML energy counter",
            "node-0",
            "needs read permission",
            '"data"',
            '"FRA"',
            '"bf16"',
        ):
            text = text.replace(name, f'"{inside}"' if name.startswith('"') else inside)
        path.write_text(re.sub(r'"text":"[^"]*"', lambda _: f'"text":"{inside}"', text), encoding="utf-8")
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    run |= {"name": HOSTILE, "tags": {HOSTILE: HOSTILE}, "command": [HOSTILE], "platform": HOSTILE, "python": HOSTILE}
    run["carbon"] = {key: HOSTILE for key in run["carbon"]}
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return folder


def test_a_page_escapes_every_name(hostile: Path) -> None:
    page = write_report(hostile).read_text(encoding="utf-8")
    assert page.count("&lt;script&gt;alert(1)") >= 8, "the names are not on the page: the test sees nothing"
    assert "<script>alert(1)" not in page and "<img src=x" not in page and "{{7*7}}" in page and ">49<" not in page
    assert page.count("<script") == 2 and page.count("</script>") == 2  # the page's own
    assert "default-src 'none'" in page


def test_other_files_keep_hostile_names_as_values(hostile: Path) -> None:
    write_report(hostile)
    card = (hostile / "model_card.yaml").read_text(encoding="utf-8")
    assert isinstance(yaml.safe_load(card.strip().strip("-")), dict)
    with (hostile / "emissions.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["project_name"] == HOSTILE
    json.loads((hostile / "boamps.json").read_text(encoding="utf-8"))


def test_tables_show_hostile_names_as_they_are(hostile: Path) -> None:
    summaries = [summarize(read_run(folder)) for folder in (FROZEN / "gears", hostile)]
    told = io.StringIO()
    console = Console(width=600, file=told)
    console.print(table.render(summaries[1]))
    console.print(compare.compare(summaries))
    assert "[/bold][red]" in told.getvalue()


def test_the_live_line_shows_a_zone_as_it_is(tmp_path: Path) -> None:
    class Grid:
        def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
            return CarbonPoint(
                t0_unix_s=t0_unix_s, t1_unix_s=t1_unix_s, g_per_kwh=100.0, zone="[/x][red]", source="test"
            )

        def describe(self) -> Mapping[str, str]:
            return {"zone": "[/x][red]"}

    config = {"run": {"dir": str(tmp_path), "report": False, "book_s": 0.1}, "power": {"sample_s": 0.02}}
    with GreenSession(config, meter=FlatMeter(), signal=Grid(), topology=Topology()) as green:
        run = green.active()
        assert run is not None
        green.state_dict()  # books
    from rich.text import Text

    assert "[/x][red]" in Text.from_markup(live_text(run)).plain


# -- what is run ----------------------------------------------------------------------------------------------------


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _keyword(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(item.value) for item in call.keywords if item.arg == name), None)


def test_the_sources_run_nothing_foreign() -> None:
    assert len(SOURCES) > 200
    wrong = []
    words = re.compile(
        r"pickle|marshal|shelve|dill|joblib|load\(|eval\(|exec\(|mktemp|os\.|getoutput|shell|verify|remote_code"
    )
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        if not words.search(source):
            continue
        tree = ast.parse(source)
        for node in ast.walk(tree):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {name.partition(".")[0] for name in names} & {"pickle", "marshal", "shelve", "dill", "joblib"}:
                wrong.append(f"{path}: imports {names}")
        for name, call in _calls(tree):
            bad = (
                (name in ("yaml.load", "yaml.full_load", "yaml.unsafe_load", "eval", "exec", "tempfile.mktemp"))
                or name in ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput")
                or (name == "torch.load" and _keyword(call, "weights_only") != "True")
                or (name in ("np.load", "numpy.load") and _keyword(call, "allow_pickle") not in (None, "False"))
                or _keyword(call, "shell") not in (None, "False")
                or _keyword(call, "verify") == "False"
                or _keyword(call, "trust_remote_code") not in (None, "False")
            )
            if bad and (path.name, name) not in OWN_CELLS:
                wrong.append(f"{path}:{call.lineno}: {ast.unparse(call)[:80]}")
    assert wrong == []


def test_a_configuration_is_data_alone(tmp_path: Path) -> None:
    path = tmp_path / "green.yaml"
    path.write_text(f"run: !!python/object/apply:os.system ['touch {tmp_path}/ran']\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid YAML"):
        GreenConfig.load(path)
    assert not (tmp_path / "ran").exists()


def test_measure_hands_words_to_no_shell(tmp_path: Path) -> None:
    config = tmp_path / "green.yaml"
    config.write_text(f"run: {{dir: {tmp_path}/runs}}\npower: {{meters: ['null']}}\n", encoding="utf-8")
    words = [sys.executable, "-c", "import sys; print(sys.argv[1])", f"; touch {tmp_path}/ran $(touch {tmp_path}/ran)"]
    command = [sys.executable, "-m", "greentrain", "measure", "--config", str(config), "--name", "m", "--", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == words[-1] and not (tmp_path / "ran").exists()


# -- who may ask, and who may read ----------------------------------------------------------------------------------


def test_servers_listen_to_this_machine_alone_unless_told() -> None:
    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"
    assert PrometheusConfig().host == "127.0.0.1"
    pytest.importorskip("fastapi")
    from greentrain.rlhf.serve.server import Server

    assert inspect.signature(Server.__init__).parameters["host"].default == "127.0.0.1"
    with pytest.raises(ConfigError, match="token_file"):
        GreenConfig.load({"export": {"prometheus": {"host": "0.0.0.0"}}})


def test_a_lent_device_answers_nobody_without_its_token() -> None:
    with serve(NullDevice()) as server:
        place = urlsplit(server.url)
        assert place.hostname == "127.0.0.1" and len(server.token) >= 32
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {server.token[:-1]}"}):
            for path in ("/", "/probe", "/../../etc/passwd", "/models/..%2f..%2fetc"):
                asking = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=5)
                asking.request("GET", path, headers=headers)
                answer = asking.getresponse()
                assert answer.status in (401, 403, 404, 405), path
                assert b"root:" not in answer.read()
                asking.close()


def test_a_token_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    before = os.umask(0)
    try:
        token = token_of(file)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600 and len(token) >= 32 and token_of(file) == token
    for mode in (0o640, 0o604, 0o660):
        file.chmod(mode)
        with pytest.raises(ConfigError, match=r"others: chmod 600"):
            token_of(file)
    file.chmod(0o600)
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="16 printable"):
        token_of(file)
    with pytest.raises(ConfigError, match="cannot be made"):
        token_of(tmp_path / "none" / "token")


def test_a_lender_refuses_a_token_that_others_can_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from greentrain.fpga_backend.remote.__main__ import main

    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o644)
    assert main(["null", "--token-file", str(file)]) == 1
    said = capsys.readouterr()
    assert "chmod 600" in said.err and SECRET not in said.out + said.err


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the one temporary folder of a machine that has no folder of this user's in /run."""
    monkeypatch.delenv(claims.ENV_DIR)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(claims, "RUN", tmp_path / "none")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", ["another user's", "link", "others can write"])
def test_claims_trust_no_folder_that_somebody_else_made(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Anybody can make a folder of that name in the temporary one, with links in it to files that a lock empties."""
    folder = claims.claims_dir()
    assert folder.parent == temporary
    if kind == "link":
        (temporary / "elsewhere").mkdir()
        folder.symlink_to(temporary / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777 if kind == "others can write" else 0o755)
    if kind == "another user's":
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    found = Claims(folder, {"run_id": "r", "rank": 0})
    assert kind in found.degraded and found.take("GPU-1")
    found.release()
    assert list(folder.iterdir()) == []


def test_the_folder_of_claims_is_its_owners_alone(temporary: Path) -> None:
    folder = claims.claims_dir()
    found = Claims(folder, {"run_id": "r", "rank": 0})
    assert not found.degraded and found.take("GPU-1") and folder.stat().st_mode & 0o777 == 0o700
    found.release()


def test_a_warning_of_claims_reaches_the_journal(temporary: Path) -> None:
    claims.claims_dir().symlink_to(temporary)
    config = {"run": {"dir": str(temporary / "runs"), "id": "one", "report": False}, "power": {"sample_s": 0.02}}
    with (
        pytest.warns(GreenTrainWarning, match="it is a link"),
        GreenSession(config, meter=FlatMeter(), topology=Topology()),
    ):
        pass
    texts = [event["text"] for event in read_run(temporary / "runs/one").ranks[0].events]
    assert any("ranks of this node may book the same device" in text for text in texts)
