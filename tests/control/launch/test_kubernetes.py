"""One Job of Kubernetes, on a loopback server that holds every body to its published shape."""

import dataclasses
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes")

from kubernetes import client
from kubernetes import config as settings
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

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
    return KubernetesControl(connect(server), wishes.wanted, tell=said.append, folder=folder, wait=wishes.wait).run()


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
    started = 1.8e9
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
    """Return a control on a clock of its own, beside which a training does as much as its pods can."""

    class Quick(KubernetesControl):
        def __init__(self, *args: Any, **more: Any) -> None:
            self.now_s, self.tokens = started, 0.0
            super().__init__(*args, **{**more, "wait": self.train, "clock": lambda: self.now_s})

        def train(self, seconds: float) -> bool:
            past_s = min(max(seconds, 0.01), 0.1)
            self.now_s += past_s
            thing = server.thing("jobs", "train", "gpt")
            self.tokens += 20_000 * past_s * thing["status"].get("active", 0)
            LauncherFiles(folder).write(Progress(attempt=1, steps=1, tokens=self.tokens, unix_s=self.now_s))
            if self.tokens >= 90_000:
                thing["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
            return self.now_s > started + 20.0

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


# -- what is asked again, and what is not ----------------------------------------------------------------------------


def asked(*answers: Any, pauses_s: tuple[float, ...] = (1.0, 5.0)) -> tuple[Any, list[float]]:
    """Return what a request brings in the end, an error included, and the pauses."""
    left, slept = list(answers), list[float]()

    def request() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        nowhere = client.ApiClient(client.Configuration(host="http://127.0.0.1:1"))
        job = KubernetesJob("train", "gpt", connection=nowhere, pauses_s=pauses_s, sleep=slept.append)
        found = job._ask("patch", "batch", "jobs", "gpt", request)
    except KubernetesError as error:
        found = error
    assert not left
    return found, slept


def refusal(status: Any, body: str | None = None, **headers: str) -> Exception:
    error: Any = ApiException(status=status, reason="Because")
    error.body, error.headers = body, headers or None
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize("status", [0, None, 409, 429, 500, 503])
def test_a_refusal_that_may_pass_is_asked_again_after_a_pause(status: int | None) -> None:
    assert asked(refusal(status), refusal(status), "done") == ("done", [1.0, 5.0])
    error, slept = asked(*[refusal(status)] * 3)
    assert type(error) is KubernetesError and str(error).endswith("Because; asked 3 times") and slept == [1.0, 5.0]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, KubernetesError), (422, KubernetesError), (499, KubernetesError), (401, ForbiddenError),
     (403, ForbiddenError), (404, GoneError)],
)  # fmt: skip
def test_a_refusal_that_does_not_pass_is_told_at_once(status: int, kind: type[Exception]) -> None:
    error, slept = asked(refusal(status, '{"message": "no such thing"}'))
    assert (
        type(error) is kind and slept == [] and str(error).startswith(f"patch jobs train/gpt: {status} no such thing")
    )


def test_a_server_says_how_long_to_wait_and_is_not_believed_for_ever() -> None:
    def pause(**headers: str) -> float:
        (first, *_) = asked(refusal(429, **headers), "done")[1]
        return first

    asked_for = [pause(**{"Retry-After": text}) for text in ("7", "0.5", "60", "3600", "soon", "-5")]
    assert asked_for == [7.0, 1.0, 60.0, 60.0, 1.0, 1.0] and pause(other="7") == pause() == 1.0


@pytest.mark.parametrize("error", [OSError("reset"), HTTPError("broken")])
def test_a_broken_connection_is_asked_again_without_what_was_asked_for_before(error: Exception) -> None:
    assert asked(refusal(429, **{"Retry-After": "9"}), error, "done") == ("done", [9.0, 5.0])
    found, _ = asked(error, error, error)
    assert str(found) == f"patch jobs train/gpt: {error}; asked 3 times" and found.__cause__ is error


@pytest.mark.parametrize("body", [None, "no JSON", "{}", "[]"])
def test_a_refusal_without_a_message_has_its_reason(body: str | None) -> None:
    assert "400 Because" in str(asked(refusal(400, body))[0])


# -- what a Job is ---------------------------------------------------------------------------------------------------


def seen(served: list[FakeKubernetes], change: Callable[[dict[str, Any]], object]) -> kubernetes.JobView:
    thing = job()
    change(thing)
    return connect(start(served, thing)).look()


def test_a_job_without_numbers_has_one_pod_of_one_rank(served: list[FakeKubernetes]) -> None:
    def bare(thing: dict[str, Any]) -> None:
        for key in ("parallelism", "completions", "completionMode"):
            del thing["spec"][key]
        del thing["spec"]["template"]["spec"]["containers"][0]["resources"]
        thing["status"] = {}

    view = seen(served, bare)
    assert (view.width, view.ranks_per_pod, view.elastic, view.pods, view.outcome) == (1, 1, False, 0, None)
    assert view.created_unix_s == datetime.fromisoformat(STARTED).timestamp() and view.queue is None and not view.going


def test_pods_that_end_still_count_and_so_do_the_gpus_of_all_containers(served: list[FakeKubernetes]) -> None:
    def busy(thing: dict[str, Any]) -> None:
        containers = thing["spec"]["template"]["spec"]["containers"]
        containers[0]["resources"] = {"limits": {"nvidia.com/gpu": "2", "cpu": "16"}}
        containers.append({"name": "beside", "resources": {"limits": {"amd.com/gpu": "3"}}})
        containers.append({"name": "none"})
        thing["spec"]["suspend"] = False
        thing["status"] = {"active": 2, "terminating": 4}

    view = seen(served, busy)
    assert view.ranks_per_pod == 5 and view.pods in (5, 6) and view.going


@pytest.mark.parametrize(
    ("conditions", "outcome"),
    [
        ([("Complete", "True")], "Complete"),
        ([("Suspended", "True"), ("Failed", "True")], "Failed"),
        ([("Complete", "False")], None),
        ([("FailureTarget", "True")], None),
    ],
)
def test_how_a_job_has_ended(
    served: list[FakeKubernetes], conditions: list[tuple[str, str]], outcome: str | None
) -> None:
    kinds = [{"type": kind, "status": status} for kind, status in conditions]
    assert seen(served, lambda thing: thing["status"].update(conditions=kinds)).outcome == outcome


@pytest.mark.parametrize("going", [False, True])
def test_nothing_is_changed_by_a_check_of_what_may_be(served: list[FakeKubernetes], going: bool) -> None:
    """Nor is anything else asked for than there is: admission webhooks judge a dry run by the state that it names."""
    server = start(served, job(suspend=not going, parallelism=2, completions=2))
    assert connect(server).check() == connect(server).look() and server.patches == []
    assert server.rehearsed == [{"suspend": not going}]
    queue = one("kueue.yaml", "LocalQueue")
    queue["spec"]["stopPolicy"] = "None" if going else "HoldAndDrain"
    queued = start(served, in_queue(job(parallelism=2, completions=2)), queue)
    connect(queued).check()
    assert queued.patches == []
    assert queued.rehearsed == [{"stopPolicy": queue["spec"]["stopPolicy"]}, {"parallelism": 2}]


def test_requests_have_an_end() -> None:
    class Api:
        def __init__(self) -> None:
            self.how: list[dict[str, Any]] = []

        def __getattr__(self, name: str) -> Any:
            def call(*args: Any, **how: Any) -> Any:
                self.how.append(how)
                return {"metadata": {"labels": {"greentrain-job": "gpt"}}, "spec": {}}

            return call

    found = KubernetesJob("train", "gpt", connection=client.ApiClient(client.Configuration(host="http://127.0.0.1:1")))
    api: Any = Api()
    found._jobs = found._custom = api
    found._patch_job({"suspend": True})
    found._patch_queue("q", {"stopPolicy": "None"})
    assert found._queue_goes("q") is True, "a queue that says nothing goes"
    assert [how["_request_timeout"] for how in api.how] == [30.0] * 3
    assert [how.get("dry_run") for how in api.how] == [None] * 3
    assert {how.get("field_validation") for how in api.how[:2]} == {"Strict"}, "a field that is none is refused"


# -- following a plan ---------------------------------------------------------------------------------------------


class Played:
    """A Job as a test plays it: pods end in their own time.

    Args:
        width: Pods at a time.
        more: Other fields of its view.
    """

    def __init__(self, width: int = 2, **more: Any) -> None:
        self.view = kubernetes.JobView(
            **{"going": True, "width": width, "ranks_per_pod": 4, "elastic": True, "pods": width, "queue": None,
               "created_unix_s": 0.0, "outcome": None, **more}
        )  # fmt: skip
        self.done: list[Any] = []
        self.looks: list[Any] = []
        """What happens at each look: an error, or fields that have changed."""

    def look(self) -> kubernetes.JobView:
        happens = self.looks.pop(0) if self.looks else {}
        if isinstance(happens, Exception):
            raise happens
        self.view = dataclasses.replace(self.view, **happens)
        return self.view

    def check(self) -> kubernetes.JobView:
        return self.view

    def go(self, view: kubernetes.JobView, going: bool, dry_run: str | None = None) -> None:
        self.done.append(going)
        self.view = dataclasses.replace(self.view, going=going)

    def resize(self, pods: int) -> None:
        self.done.append(pods)
        self.view = dataclasses.replace(self.view, width=pods)


class Steps:
    """A plan, a clock and the end of the loop: a wish a turn, waits that pass at once."""

    def __init__(self, *wishes: Any) -> None:
        self.s, self.wishes = 1000.0, list(wishes)
        self.waited: list[float] = []

    def wanted(self, now_unix_s: float) -> tuple[bool, int, float]:
        assert now_unix_s == self.s
        on, ranks, next_s = self.wishes[0]
        return on, ranks, now_unix_s + next_s

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.s += seconds
        self.wishes.pop(0)
        return not self.wishes

    def follow(self, played: Any, folder: Path | None, said: list[str] | None = None) -> int:
        said = [] if said is None else said
        control = KubernetesControl(
            played, self.wanted, tell=said.append, folder=folder, wait=self.wait, clock=lambda: self.s
        )
        return control.run()


def test_the_job_is_looked_at_each_minute_and_at_each_decision(tmp_path: Path) -> None:
    steps = Steps((True, 8, 5.0), (True, 8, 3600.0), (True, 8, 60.0), (True, 8, -4.0))
    job = Played()
    assert steps.follow(job, tmp_path) == 143 and job.done == []
    assert steps.waited == [5.0, 60.0, 60.0, 0.0]


def test_pods_that_still_end_are_waited_for_before_the_width_changes(tmp_path: Path) -> None:
    steps, job, said = Steps((True, 16, 900.0), (True, 16, 900.0), (True, 16, 900.0)), Played(), list[str]()
    job.looks = [{}, {"pods": 2}, {"pods": 1}, {"pods": 0}]
    assert steps.follow(job, tmp_path, said) == 143
    assert job.done == [False, 4, True] and steps.waited == [2.0, 2.0, 60.0]
    assert said == ["suspended, to go on with 4 pods", "resumed with 4 pods"]
    assert (tmp_path / "pods").read_text() == "4\n" and [path.name for path in tmp_path.iterdir()] == ["pods"]


def test_a_paused_job_keeps_its_width_until_it_goes_on(tmp_path: Path) -> None:
    steps, job, said = Steps((False, 16, 9.0), (False, 16, 9.0), (True, 8, 9.0)), Played(), list[str]()
    job.looks = [{}, {"pods": 0}]
    assert steps.follow(job, tmp_path, said) == 143
    assert job.done == [False, True] and said == ["suspended", "resumed with 2 pods"]
    assert (tmp_path / "pods").read_text() == "2\n"


@pytest.mark.parametrize(
    ("ranks", "more", "folder", "why"),
    [
        (10, {}, True, "a pod has 4"),
        (4, {"elastic": False}, True, "it is not Indexed with as many completions as pods at a time"),
        (4, {"elastic": False, "queue": "q"}, True, "kueue.x-k8s.io/elastic-job: 'true'"),
        (4, {}, False, "no folder is shared"),
    ],
)
def test_why_a_job_keeps_its_width_is_said_once_and_only_where_it_runs(
    tmp_path: Path, ranks: int, more: dict[str, Any], folder: bool, why: str
) -> None:
    job, said = Played(**more), list[str]()
    steps = Steps((True, ranks, 9.0), (True, ranks, 9.0), (False, ranks, 9.0))
    steps.follow(job, tmp_path if folder else None, said)
    assert job.done == [False] and said[0].startswith(f"the plan wants {ranks} ranks, but the Job keeps its 2 pods: ")
    assert why in said[0] and said[1:] == ["suspended"]


@pytest.mark.parametrize(("outcome", "code"), [("Complete", 0), ("Failed", 1)])
def test_nothing_is_done_to_a_job_that_has_ended(tmp_path: Path, outcome: str, code: int) -> None:
    job, said = Played(going=False, outcome=outcome), list[str]()
    assert Steps((True, 8, 9.0)).follow(job, tmp_path, said) == code
    assert job.done == [] and said == [f"the Job has ended: {outcome}"]


def test_what_cannot_be_asked_now_is_asked_in_a_minute(tmp_path: Path) -> None:
    job, said = Played(), list[str]()
    job.looks = [KubernetesError("away"), ConfigError("a queue of others"), {}, GoneError("no such Job")]
    steps = Steps(*[(True, 8, 9.0)] * 9)
    assert steps.follow(job, tmp_path, said) == 0
    assert steps.waited == [60.0, 60.0, 9.0] and said == [
        "away; the Job stays as it is, asked again in 60 s",
        "a queue of others; the Job stays as it is, asked again in 60 s",
        "the Job is gone, nothing is left to do (no such Job)",
    ]


def test_a_folder_that_cannot_be_written_changes_no_width(tmp_path: Path) -> None:
    folder, said = tmp_path / "shared", list[str]()
    folder.mkdir()

    class Unmounts(Steps):
        def wait(self, seconds: float) -> bool:
            shutil.rmtree(folder, ignore_errors=True)
            return super().wait(seconds)

    job = Played()
    job.looks = [{}, {}, {"pods": 0}]
    Unmounts((True, 8, 9.0), (True, 16, 9.0)).follow(job, folder, said)
    assert 4 not in job.done and any("pods cannot be written: No such file or directory" in text for text in said)


def test_what_a_plan_wants_of_a_job(tmp_path: Path) -> None:
    class Plan:
        def __init__(self, *words: Any) -> None:
            self.words = list(words)
            self.asked: list[tuple[float, float]] = []

        def decide(self, unix_s: float, tokens_done: float) -> Any:
            self.asked.append((unix_s, tokens_done))
            action, done = self.words.pop(0)
            return SimpleNamespace(action=action, done=done, next_s=unix_s + 9.0)

    wanted: Any = object.__new__(kubernetes.PlanWanted)
    wide, any_width = SimpleNamespace(ranks=16), SimpleNamespace(ranks=None)
    wanted._planner = plan = Plan((None, False), (wide, False), (None, False), (any_width, False), (None, True))
    wanted._tokens_done, wanted._held, wanted._time = lambda: 5.0, 8, SimpleNamespace(real=lambda grid_s: grid_s + 0.5)
    wanted._wants = True, 8, 0.0
    said = [wanted.wanted(10.0 * n) for n in range(5)]
    assert said == [(False, 8, 9.5), (True, 16, 19.5), (False, 16, 29.5), (True, 16, 39.5), (True, 16, 49.5)]
    assert plan.asked[0] == (0.0, 5.0)
    told: list[str] = []
    wanted._told, wanted._tell = "", told.append
    broken = [wanted.wanted(50.0 + n) for n in range(2)]  # it has no word left
    assert broken == [(True, 16, 110.0), (True, 16, 111.0)], "a Job that nobody resumes would wait for ever"
    assert told == ["the plan does not say what to do (IndexError('pop from empty list')), so the Job runs"]


def test_a_job_that_is_looked_at_each_minute_changes_no_oftener_than_the_plan_decides(tmp_path: Path) -> None:
    """Each change ends all pods: a grid that wavers about a threshold would cost a restart a minute."""
    table = tmp_path / "table.yaml"
    table.write_text("- {gear: bf16, tokens_per_s: 1000, power_w: 300}\n", encoding="utf-8")
    config = GreenConfig.load({
        "policy": {"name": "mpc", "tokens": 1e6, "deadline_h": 9, "decide_s": 900}, "precision": {"gears": ["bf16"]},
        "carbon": {"signal": "constant", "g_per_kwh": 300.0},
    })  # fmt: skip
    wanted: Any = kubernetes.PlanWanted(
        config, tokens_done=float, held=4, actions=str(table), job_unix_s=1e9, tell=pytest.fail
    )
    asked: list[float] = []

    def decide(unix_s: float, tokens_done: float) -> Any:
        asked.append(unix_s)
        action = SimpleNamespace(ranks=None) if len(asked) % 2 else None  # it changes its mind each time
        return SimpleNamespace(action=action, done=False, next_s=unix_s + 900.0)

    wanted._planner, wanted._time = SimpleNamespace(decide=decide), SimpleNamespace(real=lambda grid_s: grid_s)
    said = [wanted.wanted(1e9 + 60.0 * minute) for minute in range(31)]
    wanted.close()
    assert asked == [1e9, 1e9 + 900.0, 1e9 + 1800.0]
    assert said == [(True, 4, 1e9 + 900.0)] * 15 + [(False, 4, 1e9 + 1800.0)] * 15 + [(True, 4, 1e9 + 2700.0)]


def test_a_plan_without_a_table_is_refused_and_its_signal_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(kubernetes.PlanWanted, "close", lambda self: closed.append(True))
    config = GreenConfig.load({
        "policy": {"name": "mpc", "tokens": 1e6, "deadline_h": 9}, "precision": {"gears": ["bf16"]}
    })  # fmt: skip
    with pytest.raises(ConfigError, match="needs a table of actions before the Job has run: with --actions"):
        kubernetes.PlanWanted(config, tokens_done=float, held=1, actions=None, job_unix_s=0.0, tell=print)
    assert closed == [True]


@pytest.mark.parametrize("name", ["gpt", "/gpt", "train/", "/", "train/gpt/0", ""])
def test_a_job_is_named_with_its_namespace(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--kubernetes is '{name}'; it must be namespace/name"):
        kubernetes.run_kubernetes(GreenConfig(), name, folder=None, actions=None, tell=print)


@pytest.mark.parametrize("folder", [True, False])
def test_a_signal_ends_the_loop_and_leaves_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool
) -> None:
    place, told, made = tmp_path / "launch" / "0", list[str](), list[Any]()
    place.mkdir(parents=True)
    LauncherFiles(place).write(Progress(attempt=1, steps=1, tokens=7.0, unix_s=0.0))

    class Wanted:
        def __init__(self, config: GreenConfig, **how: Any) -> None:
            made.append(how)

        def wanted(self, now_unix_s: float) -> tuple[bool, int, float]:
            made.append(made[0]["tokens_done"]())
            os.kill(os.getpid(), signal.SIGUSR2)
            if len(made) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
                return True, 12, now_unix_s + 100.0
            return True, 12, now_unix_s

        def close(self) -> None:
            made.append("closed")

    monkeypatch.setattr(kubernetes, "PlanWanted", Wanted)
    monkeypatch.setattr(kubernetes, "KubernetesJob", lambda namespace, name: Played(3, created_unix_s=5.0))
    code = kubernetes.run_kubernetes(
        GreenConfig(), "train/gpt", folder=place if folder else None, actions="a.yaml", tell=told.append
    )
    assert code == 143 and told == ["SIGTERM: the Job stays as it is, and nobody pauses or resumes it"]
    how, *tokens, closed = made
    assert (how["held"], how["job_unix_s"], how["actions"]) == (12, 5.0, "a.yaml") and closed == "closed"
    assert tokens == [7.0 if folder else 0.0] * 2
    assert (tmp_path / "launch" / "pods").exists() is folder, "beside the folders of the pods"


def test_a_job_is_looked_at_though_the_time_of_day_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it stays suspended, or ended and unseen, for as long as the clock was set back by."""
    asked: list[float] = []

    class Wanted:
        def __init__(self, config: GreenConfig, **how: Any) -> None:
            pass

        def wanted(self, now_unix_s: float) -> tuple[bool, int, float]:
            asked.append(now_unix_s)
            if len(asked) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return True, 12, now_unix_s + 0.05

        def close(self) -> None:
            pass

    monkeypatch.setattr(kubernetes, "PlanWanted", Wanted)
    monkeypatch.setattr(kubernetes, "KubernetesJob", lambda namespace, name: Played(3))
    begin_s, calls = time.time(), iter(range(1, 10**6))
    monkeypatch.setattr(time, "time", lambda: begin_s - 3600.0 * next(calls))
    rescue = threading.Timer(30.0, os.kill, (os.getpid(), signal.SIGTERM))
    rescue.start()
    try:
        assert kubernetes.run_kubernetes(GreenConfig(), "train/gpt", folder=None, actions=None, tell=print) == 143
    finally:
        rescue.cancel()
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("host", "warns"),
    [
        ("https://10.0.0.1:443", True),
        ("https://localhost:6443", False),
        ("http://127.0.0.1:80", False),
        ("http://[::1]:80", False),
    ],
)
def test_where_kubernetes_is(monkeypatch: pytest.MonkeyPatch, host: str, warns: bool) -> None:
    asked: list[Any] = []

    def load(*path: str, client_configuration: Any) -> None:
        asked.append(path)
        client_configuration.host = host

    warned: list[Any] = []
    monkeypatch.setattr(kubernetes, "warn_experimental", lambda *what: warned.append(what))
    monkeypatch.setattr(settings, "load_incluster_config", load)
    monkeypatch.setattr(settings, "load_kube_config", load)
    monkeypatch.setenv("KUBECONFIG", "/k")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert kubernetes.connect().configuration.host == host and asked == [("/k",)]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    kubernetes.connect()
    assert asked[1:] == [()] and len(warned) == (2 if warns else 0)
