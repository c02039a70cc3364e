"""What a client may send, and what it is told when it does not get what it asked for.

Bodies are read as JSON, more strictly than Python does: what two readers could understand differently is refused.
Texts and token ids are checked by hand, as pydantic would list each wrong one of millions.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema
from starlette.requests import Request
from starlette.responses import JSONResponse

from greentrain.fpga_backend.errors import BatchError, DeviceError
from greentrain.rlhf.errors import PassTimeoutError

LONGEST = 500
"""Characters of a message: parts of what a client sent may be in it."""
KINDS = {
    400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError",
    405: "MethodNotAllowedError", 408: "RequestTimeoutError", 413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError", 500: "InternalServerError", 503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}  # fmt: skip


class Refusal(Exception):
    """Ends a request with a status and a reason.

    Args:
        status: HTTP status.
        message: Tells what is wrong, with value, bound and remedy.
        headers: Headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:LONGEST].encode("utf-8", "replace").decode("utf-8")
        self.headers = headers or {}

    def answer(self) -> JSONResponse:
        """Return it as vLLM's servers write errors."""
        body = {"error": {"message": self.message, "type": KINDS.get(self.status, "Error"), "code": self.status}}
        return JSONResponse(body, status_code=self.status, headers=self.headers)


class ErrorDetail(BaseModel):
    """Why a request was refused."""

    message: str
    type: str
    code: int


class ErrorBody(BaseModel):
    """The body of each status but 200."""

    error: ErrorDetail


def busy(message: str) -> Refusal:
    """Return the refusal of a request that may come again."""
    return Refusal(503, message, {"Retry-After": "1"})


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal that an exception of a pass means to the client."""
    if isinstance(error, Refusal):
        return Refusal(error.status, error.message, error.headers)
    if isinstance(error, BatchError):
        return Refusal(400, str(error))
    if isinstance(error, PassTimeoutError):
        return Refusal(504, str(error))
    if isinstance(error, DeviceError):
        return busy(f"the device failed and there is no home to redo the pass on: {error}")
    return Refusal(500, f"{type(error).__name__}: see the server's log")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the statuses as OpenAPI's ``responses``."""
    return {status: {"model": ErrorBody, "description": KINDS[status]} for status in statuses}


MOST_ERRORS = 3
"""Of a body that are told."""


LARGE_BYTES = 65536
"""Of a body that takes long enough to read for others to notice."""


class Body(BaseModel):
    """Of a request. Types are taken as they are: "1" is no number. Unknown keys are other servers' business."""

    model_config = ConfigDict(strict=True, extra="ignore")


Asked = TypeVar("Asked", bound=Body)


async def body_of(kind: type[Asked], request: Request) -> Asked:
    """Return a request's body as what it should be; a large one is read in a thread, so that others are answered.

    Raises:
        Refusal: As :func:`parsed`.
    """
    body = await request.body()
    return parsed(kind, body) if len(body) < LARGE_BYTES else await asyncio.to_thread(parsed, kind, body)


def parsed(kind: type[Asked], body: bytes) -> Asked:
    """Return a body as what it should be.

    Raises:
        Refusal: It is no JSON in UTF-8, holds NaN, Infinity or a key twice, or a value is not what it should be.
    """
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_unique)
    except RecursionError as error:
        raise Refusal(400, "the body is nested too deeply") from error
    except ValueError as error:
        raise Refusal(400, f"the body is no JSON in UTF-8: {error}") from error
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        told = [
            f"{'.'.join(str(part) for part in item['loc']) or 'the body'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False, include_context=False)[:MOST_ERRORS]
        ]
        raise Refusal(400, "; ".join(told)) from error


def request_body(kind: type[Body]) -> dict[str, Any]:
    """Return what OpenAPI says of the body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _texts(given: Any) -> list[str]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise ValueError("give a list of at least one text")
    for text in given:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a surrogate pair, which is no character") from None
    return given


def _sequences(given: Any) -> str | list[Any]:
    if isinstance(given, str):
        return _texts([given])[0]
    if isinstance(given, list) and given and isinstance(given[0], str):
        return _texts(given)
    rows = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    if not all(isinstance(row, list) and row and all(type(i) is int for i in row) for row in rows):
        raise ValueError("give a text, a list of texts, a list of token ids, or a list of such; none of them empty")
    found: list[Any] = given
    return found


Texts = Annotated[list[str], BeforeValidator(_texts), WithJsonSchema(_TEXTS)]
"""At least one text."""
Sequences = Annotated[
    Any,
    BeforeValidator(_sequences),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}),
]
"""One text, several, the token ids of one, or of several."""


def listed(given: str | list[Any]) -> Sequence[Any]:
    """Return one sequence as a list of it, and several as they are."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given
