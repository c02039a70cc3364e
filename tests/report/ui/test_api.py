"""The API over real run folders: what it tells, what follows a change, and what it answers nobody."""

import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.errors import ConfigError, RunFolderError
from greentrain.report.fleet.index import Index
from greentrain.report.fleet.reading import RunReading, read_folder
from greentrain.report.fleet.row import RunRow
from greentrain.report.ui.app import report_of
from greentrain.report.ui.server import Listening, PageServer
from tests.helpers.flat_meter import FlatMeter
from tests.report.cluster_plans import small, written
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, one_rank
from tests.report.ui.many_runs import one_run

ENTRY = entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)}, tokens=5)
Opened = Callable[..., httpx.Client]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Starts a server over a root, and returns a client that has come in by its link."""
    servers: list[PageServer] = []
    clients: list[httpx.Client] = []

    def start(root: Path, at: Listening | None = None) -> httpx.Client:
        servers.append(PageServer(root, at, cache=tmp_path / "cache.duckdb", every_s=0.05))
        clients.append(httpx.Client(base_url=servers[-1].url, trust_env=False))
        word = servers[-1].link.partition("#token=")[2]
        clients[-1].get("/session", headers={"Authorization": f"Bearer {word}"}).raise_for_status()
        return clients[-1]

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.close()


def read(client: httpx.Client, after: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return /api/runs, once all is read and something is new."""
    query = {} if after is None else {"after": after["version"], "epoch": after["epoch"]}
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        found: dict[str, Any] = client.get("/api/runs", params=query).raise_for_status().json()
        if found["reading"] is None and (after is None or found["version"] > after["version"] or found["trouble"]):
            return found
        time.sleep(0.02)
    raise AssertionError("the runs are not read")


def test_rows_are_those_of_the_index_and_unknown_is_null(tmp_path: Path, opened: Opened) -> None:
    runs = tmp_path / "runs"
    chance = random.Random(3)
    for i in range(12):
        one_run(runs / "team", f"r{i}", chance)
    Folder(runs, "dark", name="dark").rank(0, [], [entry(T0_S, T0_S + 10, {})])
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    found = {row["folder"]: row for row in read(opened(runs))["runs"]}
    with Index(runs, tmp_path / "other.duckdb") as index:
        index.refresh()
        rows = {row.folder.relative_to(runs).as_posix(): row for row in index.runs()}
    assert found.keys() == rows.keys() and len(found) == 14
    for folder, row in rows.items():
        for name in ("run_id", "name", "energy_j", "total_g", "g_per_token", "tokens", "zone", "project", "error"):
            assert found[folder][name] == getattr(row, name), (folder, name)
    assert found["dark"]["energy_j"] is None and found["dark"]["g_per_token"] is None
    assert (found["broken"]["state"], found["broken"]["energy_j"]) == ("broken", None)
    assert "no JSON" in found["broken"]["error"]


def test_a_run_of_a_real_session_moves_while_it_runs(tmp_path: Path, opened: Opened) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    config = {
        "run": {"dir": str(runs), "name": "live", "report": False, "book_s": 0.1, "tags": {"project": "atlas"}},
        "power": {"sample_s": 0.02},
    }
    client = opened(runs)
    seen = read(client)
    assert seen["runs"] == []
    with GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0, zone="test", source="test")) as green:
        tokens: list[int] = []
        deadline_s = time.monotonic() + 60.0
        while len(tokens) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.02)
            green.step(tokens=100)
            (row,) = read(client)["runs"] or [None]
            if row is not None and row["tokens"] and row["tokens"] not in tokens:
                assert (row["state"], row["project"], row["zone"]) == ("running", "atlas", "test")
                tokens.append(row["tokens"])
    assert len(tokens) == 3 and tokens == sorted(tokens)
    deadline_s = time.monotonic() + 60.0
    while (row := read(client)["runs"][0])["state"] == "running" and time.monotonic() < deadline_s:
        time.sleep(0.02)
    totals = green.totals()
    assert row["state"] == "finished"
    assert (row["tokens"], row["energy_j"]) == (totals.tokens, pytest.approx(totals.energy_j, rel=1e-9))
    assert row["modelled_j"] == pytest.approx(totals.by_provenance["modelled"], rel=1e-9) and row["modelled_j"] > 0


def test_only_what_changed_is_told_again(tmp_path: Path, opened: Opened) -> None:
    runs = tmp_path / "runs"
    for name in "abc":
        Folder(runs, name).rank(0, [GPU], [ENTRY])
    client = opened(runs)
    first = read(client)
    assert first["whole"] and len(first["runs"]) == 3
    same = client.get("/api/runs", params={"after": first["version"], "epoch": first["epoch"]}).json()
    assert (same["whole"], same["runs"], same["gone"]) == (False, [], [])
    gone = next(row["id"] for row in first["runs"] if row["run_id"] == "c")
    shutil.rmtree(runs / "c")
    Folder(runs, "d").rank(0, [GPU], [ENTRY])
    second = first
    new: list[str] = []
    left: list[str] = []
    while not (new and left):  # between the two, too, the folders may be looked at
        second = read(client, second)
        assert not second["whole"]
        new += [row["run_id"] for row in second["runs"]]
        left += second["gone"]
    assert (new, left) == (["d"], [gone])
    for version, epoch in ((1, "another"), (10**6, first["epoch"])):
        assert client.get("/api/runs", params={"after": version, "epoch": epoch}).json()["whole"]


def test_a_root_that_goes_away_is_told_and_the_rows_stay(tmp_path: Path, opened: Opened) -> None:
    runs = tmp_path / "runs"
    Folder(runs, "a").rank(0, [GPU], [ENTRY])
    client = opened(runs)
    first = read(client)
    runs.rename(tmp_path / "elsewhere")
    later = read(client, first)
    assert "cannot be read" in later["trouble"] and later["gone"] == []
    (tmp_path / "elsewhere").rename(runs)
    deadline_s = time.monotonic() + 60.0
    while read(client)["trouble"] and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert [row["run_id"] for row in read(client)["runs"]] == ["a"]


def test_totals_are_those_of_the_index(tmp_path: Path, opened: Opened) -> None:
    runs = tmp_path / "runs"
    chance = random.Random(5)
    for i in range(10):
        one_run(runs, f"r{i}", chance)
    client = opened(runs)
    read(client)
    with Index(runs, tmp_path / "other.duckdb") as index:
        index.refresh()
        for by in ("project", "zone,month", "", "tag:model"):
            told = client.get("/api/totals", params={"by": by}).raise_for_status().json()["totals"]
            wanted = index.totals([key for key in by.split(",") if key])
            assert [item["key"] for item in told] == [dict(total.key) for total in wanted]
            for name in ("energy_j", "facility_j", "missing_share"):
                assert [item[name] for item in told] == [getattr(total, name) for total in wanted], name
            assert told[0].keys() == asdict(wanted[0]).keys() | {"missing_share"}
    part = client.get("/api/totals", params={"by": "project", "where": "project=atlas", "since": "2026-01"}).json()
    assert [item["key"] for item in part["totals"]] == [{"project": "atlas"}]
    for wrong in ({"by": "colour"}, {"where": "project"}, {"where": "state=x"}, {"since": "May"}):
        answer = client.get("/api/totals", params=wrong)
        assert answer.status_code == 400 and answer.json()["error"]


def test_a_report_is_made_without_writing_and_an_existing_one_is_passed_on(tmp_path: Path, opened: Opened) -> None:
    folder = one_rank(tmp_path / "runs")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    client = opened(folder.parent)
    (row,) = read(client)["runs"]
    place = f"/runs/{row['id']}/report.html"
    made = client.get(place)
    assert "17.5\N{NO-BREAK SPACE}Wh" in made.text or "17.5 Wh" in made.text
    assert made.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert "cross-origin-opener-policy" not in made.headers, "beside a sandbox it is a network error"
    told = client.get(f"/api/runs/{row['id']}").json()
    assert told["summary"]["energy"]["energy_j"] == told["run"]["energy_j"] == 63_000.0
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    (folder / "report.html").write_text("the folder's own")
    assert client.get(place).text == "the folder's own"
    with (folder / "rank-00000.jsonl").open("a") as file:
        file.write("\n")
    later_ns = (folder / "report.html").stat().st_mtime_ns + 10**9
    os.utime(folder / "rank-00000.jsonl", ns=(later_ns, later_ns))
    assert "GreenTrain report" in client.get(place).text, "the folder's is older than the books"
    os.utime(folder / "report.html", ns=(later_ns, later_ns))
    assert client.get(place).text == "the folder's own"
    (folder / "estimate.json").write_text("{}")
    os.utime(folder / "estimate.json", ns=(later_ns + 1, later_ns + 1))
    assert "GreenTrain report" in client.get(place).text, "an estimate came after the folder's"
    secret = tmp_path / "secret"
    secret.write_text("not of the run")
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(secret)
    os.utime(secret, ns=(later_ns + 1, later_ns + 1))
    assert "not of the run" not in client.get(place).text


def test_a_folder_in_the_place_of_a_report_is_passed_over(tmp_path: Path) -> None:
    folder = one_rank(tmp_path / "runs")
    (folder / "report.html").mkdir()
    open_files = len(os.listdir("/dev/fd"))
    assert all(b"GreenTrain report" in report_of(folder) for _ in range(3))
    assert len(os.listdir("/dev/fd")) == open_files


def test_what_json_cannot_hold_is_an_error_with_a_reason(tmp_path: Path, opened: Opened) -> None:
    Folder(tmp_path / "runs", "odd", parameters=float("nan")).rank(0, [GPU], [ENTRY])
    client = opened(tmp_path / "runs")
    (row,) = read(client)["runs"]
    answer = client.get(f"/api/runs/{row['id']}")
    assert answer.status_code == 409 and "makes no sense" in answer.json()["error"]


def test_a_broken_run_has_a_reason_and_no_report(tmp_path: Path, opened: Opened) -> None:
    runs = tmp_path / "runs"
    folder = Folder(runs, "odd").rank(0, [GPU], [ENTRY])
    with (folder.path / "rank-00000.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "entry", "t0": "x"}) + "\n")
    client = opened(runs)
    (row,) = read(client)["runs"]
    assert row["state"] == "broken"
    for place in (f"/runs/{row['id']}/report.html", f"/api/runs/{row['id']}"):
        answer = client.get(place)
        assert answer.status_code == 409 and answer.json()["error"]


def test_nothing_but_known_runs_is_reached(tmp_path: Path, opened: Opened) -> None:
    runs = tmp_path / "runs"
    one_rank(runs)
    one_rank(tmp_path / "outside")
    client = opened(runs)
    read(client)
    for name in (
        "..",
        "../outside/demo",
        "..%2foutside%2fdemo",
        "%2e%2e%2f%2e%2e",
        "demo",
        "%00",
        "0" * 16,
        "a\\b",
        "~",
    ):
        for place in (f"/runs/{name}/report.html", f"/api/runs/{name}", f"/static/{name}", f"/static/{name}/app.py"):
            answer = client.get(place)
            assert answer.status_code == 404 or answer.url.path in ("/", "/api/runs"), place
    for name in ("app.py", "__init__.py", "../app.py", "..%2fapp.py", "%2fetc%2fpasswd"):
        assert client.get(f"/static/{name}").status_code == 404, name


def test_a_plan_in_the_folder_is_told_as_a_cluster(tmp_path: Path, opened: Opened) -> None:
    runs = tmp_path / "runs"
    one_rank(runs)
    client = opened(runs)
    assert client.get("/api/runs").json()["cluster"] is None and client.get("/api/cluster").status_code == 404
    written(runs, small())
    version = client.get("/api/runs").json()["cluster"]
    found = client.get("/api/cluster").json()
    assert version and [job["name"] for job in found["jobs"]][:2] == ["llama", "vision"]
    assert (found["provenance"], found["is_present"]) == ("modelled", False)
    (runs / "plan.json").write_text("{}")
    answer = client.get("/api/cluster")
    assert answer.status_code == 409 and "plan.json is no plan" in answer.json()["error"]
    assert client.get("/api/runs").json()["cluster"] != version


def test_without_the_links_word_there_is_no_run(tmp_path: Path) -> None:
    one_rank(tmp_path / "runs")
    used: list[str] = []
    with (
        PageServer(tmp_path / "runs", cache=tmp_path / "cache.duckdb", used=used.append) as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
    ):
        assert client.get("/").status_code == 200 and "demo" not in client.get("/").text
        closed = (
            "/api/runs",
            "/api/totals",
            "/api/cluster",
            "/api/runs/0",
            "/runs/0/report.html",
            "/openapi.json",
            "/docs",
            "/session",
        )
        assert {place: client.get(place).status_code for place in closed} == dict.fromkeys(closed, 401)
        word = server.link.partition("#token=")[2]
        for wrong in ("", "Bearer", "Bearer x", f"Bearer {word}x", f"Basic {word}"):
            assert client.get("/session", headers={"Authorization": wrong}).status_code == 401
        assert client.get("/api/runs", headers={"Authorization": f"Bearer {word}"}).status_code == 401
        entered = client.get("/session", headers={"Authorization": f"Bearer {word}"})
        told = entered.headers["set-cookie"]
        assert entered.status_code == 200 and "HttpOnly" in told and "SameSite=strict" in told
        assert client.get("/api/runs").status_code == 200
        again = httpx.get(f"{server.url}/session", headers={"Authorization": f"Bearer {word}"}, trust_env=False)
        assert again.status_code == 401, "a link opens once"
        assert used == [server.link] and word not in server.link
        forged = {"Cookie": told.partition("=")[0] + "=" + "A" * 43}
        assert httpx.get(f"{server.url}/api/runs", headers=forged, trust_env=False).status_code == 401


def test_other_names_origins_and_methods_get_nothing(tmp_path: Path, opened: Opened) -> None:
    one_rank(tmp_path / "runs")
    client = opened(tmp_path / "runs")
    port = client.base_url.port
    for name in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        "10.0.0.7",
        "[::1].evil",
        "",
    ):
        for place in ("/", "/api/runs", "/session", "/static/page.css"):
            assert client.get(place, headers={"Host": name}).status_code in (400, 421), (name, place)
    for name in (f"localhost:{port}", "localhost:8080", f"127.0.0.1:{port}", "[::1]:80"):
        assert client.get("/api/runs", headers={"Host": name}).status_code == 200, name
    origins = ("http://evil.example", "null", f"http://127.0.0.1:{port + 1 if port else 1}")
    foreign = [{"Origin": origin} for origin in origins]
    foreign += [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")]
    for headers in foreign:
        for place in ("/api/runs", "/session", "/api/totals", "/runs/0/report.html"):
            answer = client.get(place, headers=headers)
            assert answer.status_code == 403, (headers, place)
            assert not any(name.startswith("access-control") for name in answer.headers)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        assert client.request(method, "/api/runs").status_code == 405
    for place in ("/", "/static/page.css", "/api/runs", "/nothing"):
        told = client.get(place).headers
        assert "default-src 'none'" in told["content-security-policy"]
        assert "unsafe" not in told["content-security-policy"]
        assert told["cross-origin-opener-policy"] == "same-origin"
        assert (told["x-content-type-options"], told["cache-control"]) == ("nosniff", "no-store")


def test_scripts_come_in_with_the_token_of_a_file(tmp_path: Path, opened: Opened) -> None:
    one_rank(tmp_path / "runs")
    token = "a-token-of-enough-letters"
    client = opened(tmp_path / "runs", Listening(token=token, names=["runs.example"]))
    url = str(client.base_url)
    for header, status in ((f"Bearer {token}", 200), ("Bearer another-token-of-letters", 401)):
        answer = httpx.get(f"{url}/api/runs", headers={"Authorization": header}, trust_env=False)
        assert answer.status_code == status
    assert client.get("/api/runs", headers={"Host": "runs.example"}).status_code == 200


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ({"host": "0.0.0.0"}, "--token-file"),
        ({"port": 70000}, "65535"),
        ({"token": "short"}, "16"),
        ({"names": [""]}, "--name is ''"),
        ({"names": ["runs.example:8443"]}, "without scheme and port"),
    ],
)
def test_what_cannot_be_listened_at_is_refused(tmp_path: Path, at: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PageServer(tmp_path, Listening(**at), cache=tmp_path / "cache.duckdb")
    with pytest.raises(RunFolderError, match="nowhere"):
        PageServer(tmp_path / "nowhere", cache=tmp_path / "cache.duckdb")


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with PageServer(tmp_path / "runs", cache=tmp_path / "a.duckdb") as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError, match="choose another --port"):
            PageServer(tmp_path / "runs", Listening(port=port), cache=tmp_path / "b.duckdb")


def test_closing_does_not_wait_for_the_first_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Path] = []

    def slow(folder: Path) -> RunReading:
        taken.append(folder)
        time.sleep(0.1)
        return read_folder(folder)

    monkeypatch.setattr("greentrain.report.fleet.index.read_folder", slow)
    for i in range(60):
        Folder(tmp_path / "runs", f"r{i}").rank(0, [GPU, CPU], [ENTRY])
    server = PageServer(tmp_path / "runs", cache=tmp_path / "cache.duckdb")
    server.close()
    server.close()
    assert len(taken) < 60


def test_closing_does_not_wait_for_a_file_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()

    def stuck(folder: Path) -> RunReading:
        asked.set()
        assert answered.wait(60.0)
        return read_folder(folder)

    monkeypatch.setattr("greentrain.report.fleet.index.read_folder", stuck)
    Folder(tmp_path / "runs").rank(0, [GPU], [ENTRY])
    server = PageServer(tmp_path / "runs", cache=tmp_path / "cache.duckdb")
    (reader,) = [one for one in threading.enumerate() if one.name == "greentrain-ui-index"]
    try:
        assert asked.wait(60.0)
        t0_s = time.monotonic()
        server.close()
        took_s, reads = time.monotonic() - t0_s, reader.is_alive()
    finally:
        answered.set()
        reader.join()
    assert reads and took_s < 40.0


def test_rows_that_could_not_be_read_come_when_they_can(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Index.runs
    failing = threading.Event()

    def runs_of(index: Index) -> list[RunRow]:
        if failing.is_set():
            raise RuntimeError("no memory")
        return real(index)

    monkeypatch.setattr(Index, "runs", runs_of)
    failing.set()
    (tmp_path / "runs").mkdir()
    client = opened(tmp_path / "runs")
    seen: list[str] = []
    for name in "ab":  # the first from the start, the second later
        failing.set()
        Folder(tmp_path / "runs", name).rank(0, [GPU], [ENTRY])
        _wait(lambda: "no memory" in (read(client)["trouble"] or ""))
        failing.clear()
        seen.append(name)
        _wait(lambda: sorted(row["run_id"] for row in read(client)["runs"]) == seen)
        _wait(lambda: read(client)["trouble"] is None)


def _wait(until: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not until():
        assert time.monotonic() < deadline_s, "never"
        time.sleep(0.02)
