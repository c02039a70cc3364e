"""The API server of Kubernetes, as far as one Job and one LocalQueue go: on loopback, every body held to its shape."""

import json
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.control.launch.kubernetes_schema import PUBLISHED, definition_of, errors

_JOB_PATH = "/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
_PATCHES: Mapping[type, str] = {list: "application/json-patch+json", dict: "application/merge-patch+json"}
_QUEUE_QUERY = {"dryRun", "fieldManager", "fieldValidation", "force"}
"""Of a patch of a custom object (kubernetes.io/docs/reference/using-api/api-concepts/, 2026-11-21)."""


class Refusal(Exception):
    """An answer that is no object."""

    def __init__(self, code: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.code, self.message, self.headers = code, message, headers or {}


class FakeKubernetes:
    """Serves things, does what the Job controller and Kueue do, and notes what is wrong with a request.

    Args:
        things: Objects with metadata.namespace and metadata.name.
        rules: What the client's Role allows; None: everything.
    """

    def __init__(self, *things: Mapping[str, Any], rules: Sequence[Mapping[str, Any]] | None = None) -> None:
        self.things = {_key(thing): deepcopy(dict(thing)) for thing in things}
        self.rules = rules
        self.wrong: list[str] = []
        """What a real server would have refused for its shape."""
        self.used: set[tuple[str, str, str, str]] = set()
        """Verb, group, resource and name of all requests."""
        self.patches: list[dict[str, Any]] = []
        """Bodies that were kept."""
        self.rehearsed: list[dict[str, Any]] = []
        """Bodies that were only looked at: dry runs."""
        self.faults: list[Refusal] = []
        """Answers to the next requests."""
        self.kueue_versions = {"v1beta1", "v1beta2"}
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.answer(self, "get")

            def do_PATCH(self) -> None:
                fake.answer(self, "patch")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """End the server; its threads are joined."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def thing(self, resource: str, namespace: str, name: str) -> dict[str, Any]:
        """Return an object as it is."""
        return self.things[resource, namespace, name]

    def answer(self, handler: BaseHTTPRequestHandler, verb: str) -> None:
        """Answer one request."""
        length = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        with self._lock:
            try:
                code, found = 200, self._do(verb, handler.path, handler.headers.get("Content-Type", ""), body)
                for thing in found.get("items", [found]):
                    self.wrong += errors(thing, definition_of(thing))
                headers: Mapping[str, str] = {}
            except Refusal as refusal:
                code, headers = refusal.code, refusal.headers
                found = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code}
                found["message"] = refusal.message
                self.wrong += errors(found, "io.k8s.apimachinery.pkg.apis.meta.v1.Status")
        data = json.dumps(found).encode()
        handler.send_response(code)
        for key, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(data))}.items():
            handler.send_header(key, value)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = True

    def _do(self, verb: str, url: str, content_type: str, body: Any) -> dict[str, Any]:
        if self.faults:
            raise self.faults.pop(0)
        path, _, query = urlsplit(url).path, None, parse_qs(urlsplit(url).query)
        parts = path.strip("/").split("/")
        if len(parts) == 6 and parts[5] == "jobs" and verb == "get":
            return self._list(parts[4], query)
        if len(parts) != 7 or parts[0] != "apis" or parts[3] != "namespaces":
            raise Refusal(404, f"no such path {path}")
        group, version, namespace, resource, name = parts[1], parts[2], parts[4], parts[5], parts[6]
        self.used.add((verb, group, resource, name))
        if self.rules is not None and not any(_allows(rule, verb, group, resource, name) for rule in self.rules):
            raise Refusal(403, f'{resource}.{group} "{name}" is forbidden: User "green" cannot {verb} it')
        if group == "batch":
            known = set(PUBLISHED["paths"][_JOB_PATH][verb]["query"])
            if content_type and verb == "patch" and content_type not in PUBLISHED["paths"][_JOB_PATH][verb]["consumes"]:
                raise Refusal(415, f"no {content_type}")
        else:
            known = _QUEUE_QUERY
            if version not in self.kueue_versions:
                raise Refusal(404, "the server could not find the requested resource")
        self.wrong += [f"{verb} {path} has no query parameter {key}" for key in query if key not in known]
        thing = self.things.get((resource, namespace, name))
        if thing is None:
            raise Refusal(404, f'{resource}.{group} "{name}" not found')
        if group != "batch":
            thing["apiVersion"] = f"{group}/{version}"
        if verb == "get":
            self._pass(thing)
            return deepcopy(thing)
        if content_type != _PATCHES[type(body)]:
            raise Refusal(415, f"{content_type!r} is a {type(body).__name__}")
        change = _changed(body) if isinstance(body, list) else body
        self.wrong += errors(change, definition_of(thing), partial=True)
        patched = deepcopy(thing)
        _merge(patched, change)
        self._check(thing, patched)
        if query.get("dryRun") == ["All"]:
            self.rehearsed.append(change["spec"])
        else:
            thing.clear()
            thing.update(patched)
            self.patches.append(change["spec"])
            self._react(thing)
        return patched

    def _list(self, namespace: str, query: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Return the Jobs that have a label (JobList of batch/v1)."""
        self.used.add(("list", "batch", "jobs", ""))
        self.wrong += [f"a list has no query parameter {key}" for key in query if key not in ("labelSelector", "limit")]
        (label,) = query["labelSelector"]
        found = [
            deepcopy(thing) for (kind, where, _), thing in self.things.items() if (kind, where) == ("jobs", namespace)
        ]
        found = [thing for thing in found if label in (thing["metadata"].get("labels") or {})]
        return {"apiVersion": "batch/v1", "kind": "JobList", "metadata": {}, "items": found}

    def _check(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Refuse what the validation of a Job refuses: completions change with parallelism alone (KEP-3715)."""
        old, new = before["spec"], after["spec"]
        if before["kind"] == "Job" and new.get("completions") != old.get("completions"):
            indexed = new.get("completionMode") == "Indexed"
            if not indexed or new.get("completions") != new.get("parallelism"):
                raise Refusal(422, "spec.completions: Invalid value: field is immutable")

    def _react(self, thing: dict[str, Any]) -> None:
        """Do what the Job controller does at once, and Kueue with the Job of a queue."""
        if thing["kind"] == "LocalQueue":
            for job in self.things.values():
                labels = job["metadata"].get("labels") or {}
                if job["kind"] == "Job" and labels.get("kueue.x-k8s.io/queue-name") == thing["metadata"]["name"]:
                    job["spec"]["suspend"] = thing["spec"].get("stopPolicy", "None") != "None"
                    self._react(job)
            return
        status = thing["status"]
        if thing["spec"].get("suspend"):
            status["terminating"] = status.get("terminating", 0) + status.pop("active", 0)
        else:
            status["active"] = thing["spec"]["parallelism"]

    def _pass(self, thing: dict[str, Any]) -> None:
        """Let time pass: one pod a look ends."""
        status = thing.get("status", {})
        if status.get("terminating"):
            status["terminating"] -= 1


def _key(thing: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{thing['kind'].lower()}s", thing["metadata"]["namespace"], thing["metadata"]["name"]


def _allows(rule: Mapping[str, Any], verb: str, group: str, resource: str, name: str) -> bool:
    names = rule.get("resourceNames")
    return (
        verb in rule["verbs"]
        and group in rule["apiGroups"]
        and resource in rule["resources"]
        and (not names or name in names)
    )


def _changed(patch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a JSON Patch sets (RFC 6902); of its operations ``add`` alone, which replaces what is there."""
    change: dict[str, Any] = {}
    for operation in patch:
        if set(operation) != {"op", "path", "value"} or operation["op"] != "add":
            raise Refusal(400, f"{operation} is not understood here")
        *folders, key = operation["path"].strip("/").split("/")
        place = change
        for folder in folders:
            place = place.setdefault(folder, {})
        place[key] = operation["value"]
    return change


def _merge(thing: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, dict):
            _merge(thing.setdefault(key, {}), value)
        else:
            thing[key] = value
