"""What a client is told when it does not get what it asked for."""

from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

from greentrain.fpga_backend.errors import BatchError, DeviceError
from greentrain.rlhf.errors import PassTimeoutError

LONGEST = 500
"""Characters of a message: parts of what a client sent may be in it."""
KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


class Refusal(Exception):
    """Ends a request with a status and a reason.

    Args:
        status: Of HTTP.
        message: What is wrong, with value, bound and remedy.
        headers: Of the answer.
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


def of(error: BaseException) -> Refusal:
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
