"""The routes in the dialects of the clients: OpenRLHF's rewards, verl's pooling, and TRL's log-probabilities.

``/get_reward`` is what OpenRLHF asks (``--reward.remote_url``; read in OpenRLHF 0.11 (3c3be62), openrlhf/utils/agent.py
and cli/serve_rm.py). ``/classify`` of vLLM is what verl's reward loop asks (verl 0.10.dev (1dda039),
experimental/reward_loop/reward_loop.py; vLLM, entrypoints/pooling/classify).

``/v1/completions`` with ``prompt_logprobs``, as vLLM has it, gives log-probabilities of tokens that are there already.
TRL reads it so (trl 1.16, generation/vllm_client.py: get_sequence_logprobs). Entry i of a sequence is of its token i
given those before it; entry 0 is null. The rank of a token among all others is not computed and so null, as vLLM's own
schema allows; for the same reason there are no log-probabilities of other tokens.
"""

import asyncio
import json
import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from greentrain.fpga_backend.batch import Ids
from greentrain.rlhf.serve.coalescer import Row, Scorer
from greentrain.rlhf.serve.requests import Body, Refusal, Sequences, Texts, body_of, documented, listed, request_body


class RewardRequest(Body):
    """Texts to be rewarded."""

    query: Texts = Field(description="Each prompt with its answer.")
    prompts: Any = Field(default=None, description="Not read: the query has the prompt in it.")
    labels: Any = Field(default=None, description="Not read.")


class ClassifyRequest(Body):
    """Texts or token ids to be scored, as vLLM's."""

    input: Sequences
    model: str | None = Field(default=None, description="Not read: there is one reward model.")
    use_activation: bool | None = Field(
        default=None, description="Sigmoid of one score, softmax of several, unless false."
    )


def reward_routes(reward: Scorer) -> APIRouter:
    """Return ``POST /get_reward`` and ``POST /classify``."""
    router = APIRouter()

    @_post(router, "/get_reward", RewardRequest)
    async def get_reward(request: Request) -> JSONResponse:
        """OpenRLHF's remote reward model."""
        asked = await body_of(RewardRequest, request)
        if reward.frozen.program.labels != 1:
            raise Refusal(
                400, f"the model gives {reward.frozen.program.labels} scores a text, not one reward: ask /classify"
            )
        found = [float(row[0]) for row in await reward.rows(await reward.ids(asked.query))]
        return JSONResponse({"rewards": found, "scores": found, "extra_logs": {}})

    @_post(router, "/classify", ClassifyRequest)
    async def classify(request: Request) -> JSONResponse:
        """Classification of sequences, as of vLLM."""
        asked = await body_of(ClassifyRequest, request)
        ids = await reward.ids(listed(asked.input))
        found = await reward.rows(ids)
        shown = found if asked.use_activation is False else [_activated(row) for row in found]
        data = [
            {"index": i, "label": None, "probs": row.tolist(), "num_classes": len(row)} for i, row in enumerate(shown)
        ]
        return JSONResponse(
            {
                "id": f"classify-{uuid.uuid4().hex}",
                "object": "list",
                "created": int(time.time()),
                "model": str(reward.kind),
                "data": data,
                "usage": usage(ids),
            }
        )

    return router


def _post(router: APIRouter, path: str, asked: type[Body]) -> Callable[[Any], Any]:
    """Return the decorator of a route that reads its body itself, with what OpenAPI says of the body."""
    return router.post(path, response_model=None, responses=documented(400), openapi_extra=request_body(asked))


def usage(ids: Sequence[Ids]) -> dict[str, int]:
    """Return the tokens of a request."""
    tokens = sum(map(len, ids))
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}


def _activated(row: Row) -> Row:
    """Return the sigmoid of one score, or the softmax of several."""
    wide = row.astype(np.float64)
    shifted = np.exp(wide - wide.max())
    shown: Row = shifted / shifted.sum() if len(wide) > 1 else np.exp(-np.logaddexp(0.0, -wide))
    return shown.astype(np.float32)


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


def reference_routes(reference: Scorer) -> APIRouter:
    """Return ``POST /v1/completions``."""
    router = APIRouter()

    @_post(router, "/v1/completions", CompletionRequest)
    async def completions(request: Request) -> Response:
        """Log-probabilities of the tokens of prompts, as of vLLM."""
        asked = await body_of(CompletionRequest, request)
        _check(asked, reference.frozen.temperature)
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
