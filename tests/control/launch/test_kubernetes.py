"""One Job of Kubernetes, on a loopback server that holds every body to its published shape."""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes")

from kubernetes import client

from greentrain.config.schema import GreenConfig
from greentrain.control.launch import kubernetes
from greentrain.control.launch import kubernetes as kubernetes_run
from greentrain.control.launch.commands import check_width, understand
from greentrain.control.launch.kubernetes import (
    ForbiddenError,
    GoneError,
    KubernetesControl,
    KubernetesError,
    KubernetesJob,
)
from greentrain.control.launcher_protocol import LauncherFiles, Progress
from greentrain.errors import ConfigError, MissingExtraError
from tests.control.launch.kubernetes_schema import definition_of, errors
from tests.control.launch.kubernetes_server import FakeKubernetes, Refusal

RECIPES = Path(__file__).resolve().parents[3] / "recipes" / "kubernetes"
STARTED = "2026-03-01T00:00:00Z"


def recipe(name: str) -> list[dict[str, Any]]:
    return [dict(thing) for thing in yaml.safe_load_all((RECIPES / name).read_text(encoding="utf-8"))]


def one(name: str, kind: str) -> dict[str, Any]:
    return next(thing for thing in recipe(name) if thing["kind"] == kind)


def job(**spec: Any) -> dict[str, Any]:
    """Return the recipe's Job as the server has it."""
    thing = one("job.yaml", "Job")
    thing["metadata"] |= {"uid": "6b2f", "resourceVersion": "1", "creationTimestamp": STARTED}
    thing["spec"] |= spec
    thing["status"] = {} if thing["spec"].get("suspend") else {"active": thing["spec"]["parallelism"]}
    return thing


def in_queue(thing: dict[str, Any], **notes: str) -> dict[str, Any]:
    thing["metadata"] |= {"labels": {"kueue.x-k8s.io/queue-name": "gpt"}, "annotations": notes}
    return thing


@pytest.fixture
def served() -> Iterator[list[FakeKubernetes]]:
    """Servers that are closed at the end, with nothing wrong in any request."""
    servers: list[FakeKubernetes] = []
    yield servers
    for server in servers:
        server.close()
    assert [wrong for server in servers for wrong in server.wrong] == []


def start(served: list[FakeKubernetes], *things: Mapping[str, Any], **more: Any) -> FakeKubernetes:
    served.append(FakeKubernetes(*things, **more))
    return served[-1]


def connect(server: FakeKubernetes, pauses: list[float] | None = None, tries: int = 3) -> KubernetesJob:
    """Return the Job as seen by the official client."""
    noted = [] if pauses is None else pauses
    configuration = client.Configuration(host=server.url)
    configuration.retries = False
    connection = client.ApiClient(configuration)
    return KubernetesJob("train", "gpt", connection=connection, pauses_s=(0.01,) * tries, sleep=noted.append)


class Wishes:
    """A plan by hand; ends the loop when it is used up."""

    def __init__(self, *wishes: tuple[bool, int]) -> None:
        self.wishes = list(wishes)
        self.waited: list[float] = []

    def wanted(self, now_unix_s: float) -> tuple[bool, int, float]:
        on, ranks = self.wishes[0]
        return on, ranks, now_unix_s + 30.0

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        if seconds > 5.0:  # a decision, not a look at pods that end
            self.wishes.pop(0)
        return not self.wishes


def follow(server: FakeKubernetes, wishes: Wishes, folder: Path | None, said: list[str] | None = None) -> int:
    said = [] if said is None else said
    return KubernetesControl(connect(server), wishes, tell=said.append, folder=folder, wait=wishes.wait).run()


def test_a_job_is_suspended_and_resumed_by_the_plan(served: list[FakeKubernetes], tmp_path: Path) -> None:
    server = start(served, job())
    said: list[str] = []
    assert follow(server, Wishes((False, 1), (True, 1), (True, 1), (False, 1), (True, 1)), tmp_path, said) == 143
    assert server.patches == [{"suspend": False}, {"suspend": True}, {"suspend": False}]
    assert said == ["resumed with 1 pods", "suspended", "resumed with 1 pods"]


def test_the_width_changes_between_two_sets_of_pods(served: list[FakeKubernetes], tmp_path: Path) -> None:
    server = start(served, job(suspend=False, parallelism=3, completions=3))
    wishes = Wishes((True, 3), (True, 2), (False, 2), (True, 4))
    assert follow(server, wishes, tmp_path) == 143
    assert server.patches == [
        {"suspend": True},
        {"parallelism": 2, "completions": 2},
        {"suspend": False},
        {"suspend": True},
        {"parallelism": 4, "completions": 4},
        {"suspend": False},
    ]
    assert [s for s in wishes.waited if s < 5.0]  # the old pods were waited for
    assert (tmp_path / "pods").read_text() == "4\n"


@pytest.mark.parametrize(
    ("spec", "ranks", "why"),
    [
        ({"completionMode": "NonIndexed"}, 2, "not Indexed"),
        ({"completions": 5}, 2, "not Indexed"),
        ({}, None, "no folder is shared"),
    ],
)
def test_a_width_that_a_job_cannot_have_leaves_it(
    served: list[FakeKubernetes], tmp_path: Path, spec: dict[str, Any], ranks: int | None, why: str
) -> None:
    server = start(served, job(**spec))
    said: list[str] = []
    wishes = Wishes((True, 2), (True, 2))
    follow(server, wishes, None if ranks is None else tmp_path, said)
    assert server.patches == [{"suspend": False}]
    assert len([text for text in said if why in text]) == 1


def test_ranks_are_the_gpus_of_the_pods(served: list[FakeKubernetes], tmp_path: Path) -> None:
    thing = job(suspend=False)
    thing["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "8"
    server = start(served, thing)
    said: list[str] = []
    follow(server, Wishes((True, 16), (True, 12)), tmp_path, said)
    assert server.thing("jobs", "train", "gpt")["spec"]["parallelism"] == 2
    assert any("a pod has 8" in text for text in said)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_kueue_keeps_its_own(served: list[FakeKubernetes], tmp_path: Path, version: str) -> None:
    server = start(served, in_queue(job()), one("kueue.yaml", "LocalQueue"))
    server.kueue_versions = {version}
    said: list[str] = []
    follow(server, Wishes((True, 1), (False, 1), (True, 2), (True, 2)), tmp_path, said)
    assert server.patches == [{"stopPolicy": "None"}, {"stopPolicy": "HoldAndDrain"}, {"stopPolicy": "None"}]
    assert any("kueue.x-k8s.io/elastic-job" in text for text in said)


def test_an_elastic_job_of_kueue_changes_its_width(served: list[FakeKubernetes], tmp_path: Path) -> None:
    thing = in_queue(job(), **{"kueue.x-k8s.io/elastic-job": "true"})
    server = start(served, thing, one("kueue.yaml", "LocalQueue"))
    follow(server, Wishes((True, 2)), tmp_path)
    assert server.patches == [{"parallelism": 2, "completions": 2}, {"stopPolicy": "None"}]


def test_a_queue_of_others_is_not_stopped(served: list[FakeKubernetes], tmp_path: Path) -> None:
    queue = one("kueue.yaml", "LocalQueue")
    del queue["metadata"]["labels"]
    server = start(served, in_queue(job()), queue)
    with pytest.raises(ConfigError, match="LocalQueue of its own with the label greentrain-job: gpt"):
        follow(server, Wishes((False, 1)), tmp_path)
    assert not server.patches


@pytest.mark.parametrize("code", [409, 429, 500, 503])
def test_a_refusal_that_passes_is_asked_again(served: list[FakeKubernetes], code: int) -> None:
    server = start(served, job())
    pauses: list[float] = []
    found = connect(server, pauses)
    view = found.look()
    server.faults += [Refusal(code, "not now", {"Retry-After": "7"} if code == 429 else None)] * 2
    found.go(view, True)
    assert server.patches == [{"suspend": False}]
    assert pauses == ([7.0, 7.0] if code == 429 else [0.01, 0.01])


def test_a_server_that_stays_away_leaves_the_job_as_it_is(served: list[FakeKubernetes], tmp_path: Path) -> None:
    server = start(served, job())
    said: list[str] = []

    class Storm(Wishes):
        def wait(self, seconds: float) -> bool:
            if len(self.wishes) == 3:
                server.faults += [Refusal(500, "etcd is away")] * 8  # two turns of four requests
            return super().wait(seconds)

    assert follow(server, Storm((True, 1), (False, 1), (False, 1), (False, 1)), tmp_path, said) == 143
    assert [text for text in said if "etcd is away" in text] == [
        "get jobs train/gpt: 500 etcd is away; asked 4 times; the Job stays as it is, asked again in 60 s"
    ]
    assert server.patches == [{"suspend": False}, {"suspend": True}]


def test_a_connection_that_breaks_is_an_error_of_ours(served: list[FakeKubernetes]) -> None:
    server = FakeKubernetes(job())
    found = connect(server, tries=1)
    server.close()
    with pytest.raises(KubernetesError, match=r"get jobs train/gpt: .*asked 2 times"):
        found.look()


def test_a_missing_right_is_named_before_anything_is_done(served: list[FakeKubernetes], tmp_path: Path) -> None:
    reads = [{"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": ["gpt"], "verbs": ["get"]}]
    server = start(served, job(), rules=reads)
    with pytest.raises(
        ForbiddenError, match=r'patch jobs train/gpt: 403 .*resourceNames: \["gpt"\], verbs: \["get", "p'
    ):
        follow(server, Wishes((False, 1)), tmp_path)
    with pytest.raises(GoneError, match=r"get jobs train/gpt: 404 .* Create it first"):
        follow(start(served), Wishes((False, 1)), tmp_path)


@pytest.mark.parametrize(("kind", "code"), [("Complete", 0), ("Failed", 1)])
def test_the_end_of_the_job_is_ours(served: list[FakeKubernetes], tmp_path: Path, kind: str, code: int) -> None:
    thing = job(suspend=False)
    thing["status"] = {"conditions": [{"type": "Suspended", "status": "False"}, {"type": kind, "status": "True"}]}
    assert follow(start(served, thing), Wishes((False, 1)), tmp_path) == code


def test_a_job_that_is_deleted_ends_the_loop(served: list[FakeKubernetes], tmp_path: Path) -> None:
    server = start(served, job())

    class Deletes(Wishes):
        def wait(self, seconds: float) -> bool:
            server.things.clear()
            return False

    assert follow(server, Deletes((True, 1)), tmp_path) == 0


def test_a_wrong_field_is_found() -> None:
    """What the other tests stand on: the checks refuse what the server would."""
    thing = job()
    name = definition_of(thing)
    assert errors(thing, name) == []
    assert errors({"spec": {"suspended": True}}, name, partial=True) == ["Job.spec has no field suspended"]
    assert errors({"spec": {"suspend": "yes"}}, name, partial=True) == ["Job.spec.suspend is 'yes', no boolean"]
    assert errors({"spec": {"parallelism": True}}, name, partial=True) != []
    thing["spec"]["template"]["spec"]["containers"][0].pop("name")
    assert errors(thing, name) == ["Job.spec.template.spec.containers[0] lacks name"]
    thing["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] = ["75"]
    assert any("values[0] is '75', no integer" in text for text in errors(thing, name))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_recipes_have_the_published_shapes(path: Path) -> None:
    things = recipe(path.name)
    assert things
    for thing in things:
        assert errors(thing, definition_of(thing)) == []
        assert thing["metadata"]["namespace"] == "train"


def test_the_recipe_gives_exactly_the_rights_that_are_used(served: list[FakeKubernetes], tmp_path: Path) -> None:
    rules = one("rbac.yaml", "Role")["rules"]
    plain = start(served, job(), rules=rules)
    follow(plain, Wishes((True, 1), (True, 2), (False, 2)), tmp_path)
    assert plain.used == _granted(rules)
    both = rules + one("kueue.yaml", "Role")["rules"]
    thing = in_queue(job(), **{"kueue.x-k8s.io/elastic-job": "true"})
    kueue = start(served, thing, one("kueue.yaml", "LocalQueue"), rules=both)
    follow(kueue, Wishes((True, 1), (True, 2), (False, 2)), tmp_path)
    assert kueue.used == _granted(both)


def _granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str, str]]:
    return {
        (verb, group, resource, name)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }


def test_the_recipes_fit_together() -> None:
    pod = one("job.yaml", "Job")["spec"]["template"]["spec"]
    data = one("config.yaml", "ConfigMap")["data"]
    policy = one("job.yaml", "Job")["spec"]["podFailurePolicy"]["rules"][0]
    assert policy["action"] == "Ignore" and policy["onExitCodes"]["values"] == [75]
    grace_s = pod["terminationGracePeriodSeconds"]
    hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert hook.startswith("kill -USR1 1; sleep ") and int(hook.split()[-1]) < grace_s
    deployment = one("controller.yaml", "Deployment")["spec"]["template"]["spec"]
    assert deployment["serviceAccountName"] == one("rbac.yaml", "ServiceAccount")["metadata"]["name"]
    assert set(data) == {"controller.yaml", "actions.yaml", "train.yaml"}


@pytest.mark.parametrize("pods", [1, 2])
def test_the_launcher_in_a_pod_accepts_the_recipes_command(
    pods: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = one("job.yaml", "Job")["spec"]["template"]["spec"]["containers"][0]["args"]
    filled = line.replace("$(cat /data/launch/pods)", str(pods)).replace("$(JOB_COMPLETION_INDEX)", "0")
    assert "$" not in filled
    words = shlex.split(filled)
    command = words[words.index("--") + 1 :]
    (tmp_path / "train.py").touch()
    (tmp_path / "torchrun").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    understood = understand(command)
    (tmp_path / "train.yaml").write_text(one("config.yaml", "ConfigMap")["data"]["train.yaml"])
    width = GreenConfig.load(tmp_path / "train.yaml").actuators.width
    ranks = understood.ranks or 1
    check_width(understood, *((ranks, ranks) if width is None else (width.min, width.max)))


def test_the_recipes_configuration_is_read(tmp_path: Path) -> None:
    data = one("config.yaml", "ConfigMap")["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    assert GreenConfig.load(tmp_path / "train.yaml").actuators.width is None, "the launcher in a pod would refuse it"
    wanted = kubernetes_run.PlanWanted(
        GreenConfig.load(tmp_path / "controller.yaml"),
        tokens_done=lambda: 0.0,
        held=1,
        actions=str(tmp_path / "actions.yaml"),
        job_unix_s=0.0,
        tell=print,
    )
    words = [wanted.wanted(hour * 3600.0) for hour in range(0, 96, 3)]
    wanted.close()
    assert {on for on, _, _ in words} == {True, False}, "the grid of the recipe gives a plan something to do"
    assert {ranks for _, ranks, _ in words} <= {1, 2, 4}
    assert all(next_s > hour * 3600.0 for hour, (_, _, next_s) in zip(range(0, 96, 3), words, strict=True))


def test_a_plan_runs_a_job(served: list[FakeKubernetes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the kubeconfig to the end of the Job, by the plan of a replayed day at 20,000 times its speed."""
    server = start(served, job(), rules=one("rbac.yaml", "Role")["rules"])
    day = tmp_path / "day.csv"
    rows = [
        f"2026-03-{1 + h // 24:02d}T{h % 24:02d}:00:00Z,{50 if h < 30 else 600 if h < 42 else 100}" for h in range(72)
    ]
    day.write_text("\n".join(["timestamp_utc,g_per_kwh", *rows]) + "\n")
    rows = [f"- {{gear: bf16, ranks: {n}, tokens_per_s: {20_000 * n}, power_w: {300 * n}}}" for n in (1, 2)]
    (tmp_path / "actions.yaml").write_text("\n".join(rows))
    started = time.time()
    thing = server.thing("jobs", "train", "gpt")
    thing["metadata"]["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started))
    (tmp_path / "green.yaml").write_text(
        f"carbon: {{signal: trace, trace_csv: {day}, replay_start: '2026-03-01T20:00:00+00:00', speed: 20000}}\n"
        f"policy: {{name: mpc, tokens: 90000, deadline_h: 36, actions: {tmp_path}/actions.yaml}}\n"
        "precision: {gears: [bf16]}\nactuators: {width: {min: 1, max: 2}}\n"
    )
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(_kubeconfig(server.url)))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    folder = tmp_path / "launch" / "0"
    folder.mkdir(parents=True)
    monkeypatch.setattr(kubernetes_run, "KubernetesControl", _quick(server, folder, started))
    said: list[str] = []
    config = GreenConfig.load(tmp_path / "green.yaml")
    assert kubernetes_run.run_kubernetes(config, "train/gpt", folder=folder, actions=None, tell=said.append) == 0
    spent = [patch["suspend"] for patch in server.patches if "suspend" in patch]
    assert True in spent and spent[-1] is False  # paused over the dirty day, resumed in the evening
    assert said[-1] == "the Job has ended: Complete"


def _quick(server: FakeKubernetes, folder: Path, started: float) -> type[KubernetesControl]:
    """Return a control beside which a training does as much as its pods can."""

    class Quick(KubernetesControl):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            wait = self._wait
            tokens, before = 0.0, time.time()

            def train(seconds: float) -> bool:
                nonlocal tokens, before
                stop = wait(min(seconds, 0.1))
                thing = server.thing("jobs", "train", "gpt")
                now = time.time()
                tokens += 20_000 * (now - before) * thing["status"].get("active", 0)
                before = now
                LauncherFiles(folder).write(Progress(attempt=1, steps=1, tokens=tokens, unix_s=now))
                if tokens >= 90_000:
                    thing["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
                return stop or now > started + 20.0

            self._wait = train

    return Quick


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "green"}}],
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "green", "user": {"token": "none"}}],
    }


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="must be namespace/name of a Job"):
        kubernetes_run.run_kubernetes(GreenConfig(), "gpt", folder=None, actions=None, tell=print)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="set KUBECONFIG"):
        kubernetes_run.run_kubernetes(GreenConfig(), "train/gpt", folder=None, actions=None, tell=print)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes._imports, "error", ImportError("No module named 'kubernetes'"))
    with pytest.raises(MissingExtraError, match=r"greentrain-torch\[kubernetes\]"):
        KubernetesJob("train", "gpt")
