"""The engines with their official clients: Kubernetes and Kueue, and Ray's job server, on loopback."""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from greentrain.control.fleet.engines import Declared, EngineError, EngineJob, Kueue, Ray, open_engine
from greentrain.control.fleet.spec import EngineSpec, FleetSpec
from greentrain.errors import ConfigError
from tests.callbacks.ray_here import import_ray
from tests.control.fleet.test_controller import spec_in
from tests.control.launch.kubernetes_server import FakeKubernetes
from tests.control.launch.test_kubernetes import job as kubernetes_job
from tests.control.launch.test_kubernetes import one


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[FakeKubernetes]:
    """Two Jobs, of which one is of the fleet, with Kueue where the test says so."""
    thing, other = kubernetes_job(), kubernetes_job()
    thing["metadata"]["labels"] = {"greentrain.fleet": "east", "greentrain.fleet/pool": "gpu"}
    thing["metadata"]["annotations"] = {"greentrain.fleet/job": "hours=6,restart=yes"}
    other["metadata"] = {**other["metadata"], "name": "other", "labels": {}}
    things = [thing, other]
    if "kueue" in request.node.name:
        thing["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpt"
        things.append(one("kueue.yaml", "LocalQueue"))
    found = FakeKubernetes(*things)
    yield found
    found.close()
    assert found.wrong == []


def kueue(server: FakeKubernetes) -> Kueue:
    client = pytest.importorskip("kubernetes").client
    configuration = client.Configuration(host=server.url)
    configuration.retries = False
    return Kueue("train", client.ApiClient(configuration))


def only(engine: Kueue | Ray) -> EngineJob:
    (found,) = engine.look().jobs
    return found


def test_a_job_of_kubernetes_is_suspended_resized_and_resumed(server: FakeKubernetes) -> None:
    server.thing("jobs", "train", "gpt")["spec"]["suspend"] = False
    server.thing("jobs", "train", "gpt")["status"] = {"active": 1}
    engine = kueue(server)
    found = only(engine)
    assert (found.id, found.state, found.nodes, found.partition) == ("gpt", "running", 1, "gpu")
    assert found.tag == "greentrain:hours=6,restart=yes" and found.submit_s > 0
    engine.hold(found)
    assert only(engine).state in ("ending", "held")
    while only(engine).state != "held":
        pass
    engine.hold(found)  # told twice
    engine.release(only(engine), 3, "gpu")
    assert (only(engine).state, only(engine).nodes) == ("running", 3)
    assert server.patches == [
        {"suspend": True}, {"suspend": True}, {"parallelism": 3, "completions": 3}, {"suspend": False}
    ]  # fmt: skip
    with pytest.raises(EngineError, match="lies in pool 'gpu'"):
        engine.release(found, 1, "other")


def test_a_job_of_kueue_waits_in_a_queue_of_its_own(server: FakeKubernetes) -> None:
    engine = kueue(server)
    engine.hold(only(engine))
    assert server.patches == [{"stopPolicy": "HoldAndDrain"}]
    while only(engine).state != "held":
        pass
    engine.release(only(engine), only(engine).nodes, "gpu")
    assert server.patches[-1] == {"stopPolicy": "None"}
    server.things.pop(("localqueues", "train", "gpt"))
    with pytest.raises(EngineError, match="Create it first"):
        engine.look()


class FakeRay:
    """Ray's job server as its REST API says (docs.ray.io, Ray Jobs REST API, 2.60), as far as a fleet goes."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found: Any = {"version": "4", "ray_version": "2.60.0", "ray_commit": "x", "session_name": "s"}
                self._say(200, found if self.path == "/api/version" else list(fake.jobs.values()))

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                if self.path.endswith("/stop"):
                    fake.jobs[self.path.split("/")[3]]["status"] = "STOPPED"
                    self._say(200, {"stopped": True})
                elif body["submission_id"] in fake.jobs:
                    self._say(500, {"error": f"{body['submission_id']} was already submitted"})
                else:
                    fake.add(body["submission_id"], body["entrypoint"], body["metadata"], body.get("runtime_env"))
                    self._say(200, {"job_id": body["submission_id"], "submission_id": body["submission_id"]})

            def _say(self, code: int, found: Any) -> None:
                data = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, name: str, entrypoint: str, metadata: Mapping[str, str], runtime_env: Any = None) -> None:
        self.jobs[name] = {
            "type": "SUBMISSION", "submission_id": name, "status": "RUNNING", "entrypoint": entrypoint,
            "metadata": dict(metadata), "start_time": 1_700_000_000_000 + len(self.jobs),
            "runtime_env": runtime_env or {},
        }  # fmt: skip

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    monkeypatch.setenv("RAY_CLIENT_MODE", "0")  # which its client sets, and leaves
    import_ray()
    found = FakeRay()
    yield found
    found.close()


def test_a_job_of_ray_is_stopped_and_submitted_again(ray: FakeRay, tmp_path: Path) -> None:
    ray.add(
        "gpt",
        "python train.py",
        {"greentrain": "hours=6,restart=yes", "nodes": "2", "pool": "gpu"},
        {"env_vars": {"A": "1"}},
    )
    ray.add("other", "python other.py", {})
    with pytest.warns(UserWarning, match="a fleet on Ray"):
        engine = open_engine(spec_in(tmp_path, engine=EngineSpec(kind="ray", address=ray.url)))
    assert isinstance(engine, Ray)
    found = only(engine)
    assert (found.id, found.state, found.nodes, found.partition) == ("gpt", "running", 2, "gpu")
    assert found.tag == "greentrain:hours=6,restart=yes" and found.submit_s == 1_700_000_000.0
    engine.hold(found)
    stopped = only(engine)
    assert stopped.state == "stopped"
    engine.release(stopped, 2, "gpu")
    again = ray.jobs["gpt~1"]
    assert (again["entrypoint"], again["metadata"]["greentrain"], again["runtime_env"]) == (
        "python train.py", "hours=6,restart=yes", {"env_vars": {"A": "1"}}
    )  # fmt: skip
    with pytest.raises(EngineError, match="already submitted"):
        engine.release(stopped, 2, "gpu")  # as of one that was cut off: an id is taken once
    assert (only(engine).id, only(engine).state) == ("gpt", "running")
    engine.hold(only(engine))
    assert ray.jobs["gpt~1"]["status"] == "STOPPED"
    with pytest.raises(EngineError, match="keeps its 2 nodes"):
        engine.release(only(engine), 1, "gpu")
    ray.close = lambda: None  # type: ignore[method-assign]
    FakeRay.close(ray)
    with pytest.raises(EngineError, match="Ray: "):
        engine.look()


def test_no_engine_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_in(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="scontrol is not on PATH"):
        open_engine(spec)


def test_declared_jobs_wait(tmp_path: Path) -> None:
    text = (tmp_path / "x").with_suffix(".yaml")
    spec_in(tmp_path)
    text.write_text((tmp_path / "fleet.yaml").read_text() + "jobs: [{name: a, hours: 1, nodes: 1-4}]\n")
    (found,) = Declared(FleetSpec.read(text)).look().jobs
    assert (found.name, found.state, found.nodes, found.partition) == ("a", "held", 4, "gpu")
