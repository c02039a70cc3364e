"""Requests to Kubernetes that are made again while that may help, and say what is missing where it does not."""

import json
import os
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from greentrain.errors import ConfigError, GreenTrainError
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn_experimental

with try_import("kubernetes") as imports:
    from kubernetes import client
    from kubernetes import config as settings
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Before each repetition of a request that failed (s)."""
LONGEST_PAUSE_S: Final = 60.0
"""What a server may ask for with Retry-After (s)."""

T = TypeVar("T")


class KubernetesError(GreenTrainError):
    """Kubernetes did not answer, or refused."""


class ForbiddenError(KubernetesError):
    """The ServiceAccount may not do that; the message names the rule that it lacks."""


class GoneError(KubernetesError):
    """What the request is about is not there."""


def connect() -> "client.ApiClient":
    """Return the client of the pod's ServiceAccount, or of the kubeconfig outside of a pod.

    Raises:
        MissingExtraError: The client is not installed.
        ConfigError: Neither is at hand.
    """
    imports.check()
    configuration = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            settings.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            path = os.environ.get("KUBECONFIG")  # the client looks at it when it is imported, which may be earlier
            settings.load_kube_config(path, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except settings.ConfigException as error:
        raise ConfigError(
            f"Kubernetes cannot be reached: {error}. In a pod name its serviceAccountName; elsewhere set KUBECONFIG, or"
            " write ~/.kube/config"
        ) from error
    if urlsplit(configuration.host).hostname not in ("127.0.0.1", "localhost", "::1"):
        warn_experimental("following a Job of Kubernetes", "it ran against an imitated API server, never on a cluster")
    return client.ApiClient(configuration)


def insist(
    request: Callable[[], T],
    *,
    verb: str,
    group: str,
    resource: str,
    namespace: str,
    name: str,
    pauses_s: tuple[float, ...] = PAUSES_S,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return what a request returns, made again after 409, 429, 5xx and broken connections.

    Args:
        request: Makes it.
        verb: What it needs the right to, as in ``patch``.
        group: On what: API group.
        resource: Plural.
        namespace: Where.
        name: Which one.
        pauses_s: Before each repetition (s).
        sleep: Sleeps so many seconds.

    Raises:
        ForbiddenError: The right is missing.
        GoneError: There is no such thing.
        KubernetesError: It was refused otherwise, or nobody answers.
    """
    what = f"{verb} {resource} {namespace}/{name}"
    cause: Exception
    for pause_s in (*pauses_s, None):
        asked_s = 0.0
        try:
            return request()
        except ApiException as error:
            said, cause = f"{what}: {error.status} {_message(error)}", error
            if error.status in (401, 403):
                raise ForbiddenError(
                    f"{said}. Let a Role in namespace {namespace} give the ServiceAccount the rule"
                    f' {{apiGroups: ["{group}"], resources: ["{resource}"], resourceNames: ["{name}"],'
                    ' verbs: ["get", "patch"]}, as recipes/kubernetes/rbac.yaml does'
                ) from error
            if error.status == 404:
                raise GoneError(f"{said}. Create it first, or name another one") from error
            if error.status not in (0, 409, 429, None) and error.status < 500:
                raise KubernetesError(said) from error
            asked_s = _retry_after_s(error)
        except (HTTPError, OSError) as error:
            said, cause = f"{what}: {error}", error
        if pause_s is None:
            raise KubernetesError(f"{said}; asked {len(pauses_s) + 1} times") from cause
        sleep(max(pause_s, asked_s))
    raise AssertionError  # the last pause is None


def _message(error: Any) -> str:
    """Return the message of the v1 Status that comes with a refusal."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


def _retry_after_s(error: Any) -> float:
    try:
        return min(LONGEST_PAUSE_S, float(error.headers["Retry-After"]))
    except (TypeError, KeyError, ValueError):
        return 0.0
