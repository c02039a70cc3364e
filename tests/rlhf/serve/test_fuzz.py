"""Bodies that the OpenAPI document allows, bodies that it forbids, and bodies that no document foresees."""

import json
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from greentrain.rlhf.serve.app import application
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.server import Server
from tests.rlhf.serve.answers import with_answers
from tests.rlhf.serve.serving import TOKEN, client, parts

EXAMPLES = 5
"""Of each route and kind."""
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_document_is_kept(mode: GenerationMode) -> None:
    """In this process, without a socket."""
    one = parts()
    served = application(one.engine, one.text, token=TOKEN, limits=ServeLimits())
    schema = schemathesis.openapi.from_dict(with_answers(served.routes.openapi()))
    schema.app = served.guarded
    try:
        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            if mode is GenerationMode.NEGATIVE and operation.method == "get":
                continue  # there is nothing to forbid

            @hypothesis.settings(
                max_examples=EXAMPLES,
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def kept(case: Any) -> None:
                case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, checks=CHECKS)

            kept()
    finally:
        served.close()
        one.device.close()


DEEP = 20_000
NASTY = [
    b"",
    b" ",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"{",
    b'{"input": [1, 2',
    b"\xff\xfe{\x00}\x00",
    b'{"input": "\xff"}',
    b'{"input": "\xed\xa0\x80"}',
    b'{"input": "\\ud800"}',
    b'{"input": ["\\udfff"], "\\ud800": 1}',
    b'{"input": [1], "input": [2]}',
    b'{"input": [1], "more": {"a": 1, "a": 1}}',
    b'{"input": [NaN]}',
    b'{"input": [1], "use_activation": Infinity}',
    b'{"input": -Infinity}',
    b'{"input": [1e400]}',
    b'{"input": [' + b"9" * 5000 + b"]}",
    b'{"input": [' + b"9" * 4000 + b"]}",
    b'{"input": [9223372036854775808]}',
    b'{"input": [4294967297]}',
    b'{"input": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"a": ' * DEEP + b"1" + b"}" * DEEP,
    b'{"input": [' + b"true," * 10_000 + b"true]}",
    b'{"input": [' + b"[1]," * 10_000 + b"[1]]}",
    b'{"input": [' + b"{}," * 10_000 + b"{}]}",
    b'{"input": [[1], "two"]}',
    b'{"input": {"0": 1}}',
    b'{"input": "a\\u0000b ' + b"w " * 10_000 + b'"}',
    b'[{"input": [1]}]',
    b'{"input": [1]} {"input": [2]}',
    b"\xef\xbb\xbf" + b'{"input": [1]}',
]


def test_nasty_bodies_are_400_with_a_reason(server: Server) -> None:
    with client(server) as asking:
        asking.headers["Content-Type"] = "application/json"
        for body in NASTY:
            for route in ("/classify", "/get_reward", "/v1/completions"):
                answer = asking.post(route, content=body)
                assert answer.status_code == 400, (route, body[:60], answer.text[:300])
                error = answer.json()["error"]
                assert error["message"] and len(error["message"]) <= 500 and error["code"] == 400
        fine = asking.post("/classify", content=json.dumps({"input": [1, 2, 3]}))
        assert fine.status_code == 200
