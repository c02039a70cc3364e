"""Log-probabilities of tokens that are there already: vLLM's ``/v1/completions`` with ``prompt_logprobs``.

TRL reads it so (trl 1.16, generation/vllm_client.py: get_sequence_logprobs). Entry i of a sequence is of its token i
given those before it; entry 0 is null. The rank of a token among all others is not computed and so null, as vLLM's own
schema allows; for the same reason there are no log-probabilities of other tokens.
"""

import asyncio
import json
import math
import time
import uuid
from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from greentrain.fpga_backend.batch import Ids
from greentrain.rlhf.serve import errors
from greentrain.rlhf.serve.coalescer import Row
from greentrain.rlhf.serve.errors import Refusal
from greentrain.rlhf.serve.pooling import Usage, usage
from greentrain.rlhf.serve.requests import Body, Sequences, body_of, listed, request_body
from greentrain.rlhf.serve.scorer import Scorer

LOWEST = -9999.0
"""What vLLM writes for a log-probability of minus infinity (entrypoints/serve, clamp_prompt_logprobs)."""

MANY_TOKENS = 4096
"""Whose answer takes long enough to write for others to notice."""


class CompletionRequest(Body):
    """Sequences whose tokens' log-probabilities are wanted."""

    prompt: Sequences
    prompt_logprobs: int | None = Field(default=None, description="0: of the tokens themselves. Nothing else is known.")
    max_tokens: int | None = Field(default=1, ge=0, description="0 or 1. Nothing is generated.")
    temperature: float | None = Field(
        default=1.0, allow_inf_nan=False, description="What the reference was compiled with."
    )
    model: str | None = Field(default=None, description="Not read: there is one reference model.")
    n: int | None = Field(default=1, description="1.")
    stream: bool | None = Field(default=False, description="false.")
    echo: bool | None = Field(default=False, description="false.")
    logprobs: int | None = Field(default=None, description="null.")


class TokenLogprob(BaseModel):
    """Of one token."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class Choice(BaseModel):
    """Of one sequence."""

    index: int
    text: str
    logprobs: None
    finish_reason: str
    prompt_logprobs: list[dict[str, TokenLogprob] | None]


class CompletionResponse(BaseModel):
    """As vLLM's."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


def routes(reference: Scorer) -> APIRouter:
    """Return ``POST /v1/completions``."""
    router = APIRouter()

    @router.post(
        "/v1/completions",
        response_model=CompletionResponse,
        responses=errors.documented(400),
        openapi_extra=request_body(CompletionRequest),
    )
    async def completions(request: Request) -> Response:
        """Log-probabilities of the tokens of prompts, as of vLLM."""
        asked = await body_of(CompletionRequest, request)
        _check(asked, reference.temperature)
        ids = await reference.ids(listed(asked.prompt))
        found = await reference.rows(ids)
        few = sum(map(len, ids)) < MANY_TOKENS
        content = _written(reference, ids, found) if few else await asyncio.to_thread(_written, reference, ids, found)
        return Response(content, media_type="application/json")

    return router


def _check(asked: CompletionRequest, temperature: float) -> None:
    """Refuse what would need another answer than the reference gives."""
    given = 1.0 if asked.temperature is None else asked.temperature
    if not math.isclose(given, temperature, rel_tol=1e-6):
        raise Refusal(
            400,
            f"temperature is {given}, the reference was compiled with {temperature}: send that one, or compile with "
            "the temperature that the policy is sampled with",
        )
    if asked.prompt_logprobs is None or asked.prompt_logprobs != 0:
        raise Refusal(
            400,
            f"prompt_logprobs is {asked.prompt_logprobs}: the device knows the log-probability of each token that is "
            "there, not the best ones; send 0 (in TRL: top_logprobs=0)",
        )
    if asked.max_tokens is not None and asked.max_tokens > 1:
        raise Refusal(400, f"max_tokens is {asked.max_tokens}: this server scores and does not generate; send 1")
    for name, only in (("n", 1), ("stream", False), ("echo", False), ("logprobs", None)):
        value = getattr(asked, name)
        if value is not None and value != only:
            raise Refusal(400, f"{name} is {value}: this server scores prompts and does not generate; leave it away")


def _written(reference: Scorer, ids: Sequence[Ids], found: Sequence[Row]) -> str:
    """Return the answer as JSON, a sequence at a time: the encoder of all at once would not let others run."""
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": str(reference.kind),
        "usage": usage(ids),
    }
    choices = ",".join(_choice(i, row, logprobs) for i, (row, logprobs) in enumerate(zip(ids, found, strict=True)))
    return f'{json.dumps(head)[:-1]}, "choices": [{choices}]}}'


def _choice(index: int, row: Ids, logprobs: Row) -> str:
    values = np.maximum(logprobs, np.float32(LOWEST)).tolist()
    entries = [
        f'{{"{token}":{{"logprob":{value!r},"rank":null,"decoded_token":null}}}}'
        for token, value in zip(row[1:].tolist(), values, strict=True)
    ]
    head = {"index": index, "text": "", "logprobs": None, "finish_reason": "length"}
    return f'{json.dumps(head)[:-1]}, "prompt_logprobs": [{",".join(["null", *entries])}]}}'
