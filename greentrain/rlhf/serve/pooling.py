"""What verl's reward loop asks of a reward server: vLLM's ``/classify`` and SGLang's ``/v1/embeddings``.

Read in verl 0.10.dev (1dda039), experimental/reward_loop/reward_loop.py, and vLLM, entrypoints/pooling/classify.
"""

import time
import uuid
from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from greentrain.fpga_backend.batch import Ids
from greentrain.rlhf.serve import errors
from greentrain.rlhf.serve.coalescer import Row
from greentrain.rlhf.serve.requests import Body, Sequences, body_of, listed, request_body
from greentrain.rlhf.serve.scorer import Scorer


class PoolingRequest(Body):
    """Texts or token ids to be scored."""

    input: Sequences
    model: str | None = Field(default=None, description="Not read: there is one reward model.")


class ClassifyRequest(PoolingRequest):
    """As vLLM's."""

    use_activation: bool | None = Field(
        default=None, description="Sigmoid of one score, softmax of several, unless false."
    )


class Classified(BaseModel):
    """Of one sequence."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class Usage(BaseModel):
    """What was computed."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class ClassifyResponse(BaseModel):
    """As vLLM's."""

    id: str
    object: str
    created: int
    model: str
    data: list[Classified]
    usage: Usage


class Embedded(BaseModel):
    """Of one sequence."""

    index: int
    object: str
    embedding: list[float]


class EmbeddingsResponse(BaseModel):
    """As SGLang's."""

    object: str
    model: str
    data: list[Embedded]
    usage: Usage


def routes(reward: Scorer) -> APIRouter:
    """Return ``POST /classify`` and ``POST /v1/embeddings``."""
    router = APIRouter()
    documented = errors.documented(400)

    @router.post(
        "/classify",
        response_model=ClassifyResponse,
        responses=documented,
        openapi_extra=request_body(ClassifyRequest),
    )
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

    @router.post(
        "/v1/embeddings",
        response_model=EmbeddingsResponse,
        responses=documented,
        openapi_extra=request_body(PoolingRequest),
    )
    async def embeddings(request: Request) -> JSONResponse:
        """SGLang's way to ask a reward model: its scores in the place of an embedding."""
        asked = await body_of(PoolingRequest, request)
        ids = await reward.ids(listed(asked.input))
        found = await reward.rows(ids)
        data = [{"index": i, "object": "embedding", "embedding": row.tolist()} for i, row in enumerate(found)]
        return JSONResponse({"object": "list", "model": str(reward.kind), "data": data, "usage": usage(ids)})

    return router


def usage(ids: Sequence[Ids]) -> dict[str, int]:
    """Return the tokens of a request."""
    tokens = sum(map(len, ids))
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}


def _activated(row: Row) -> Row:
    """Return the sigmoid of one score, or the softmax of several."""
    wide = row.astype(np.float64)
    if len(wide) == 1:
        shown: Row = np.exp(-np.logaddexp(0.0, -wide)).astype(np.float32)
        return shown
    shifted = np.exp(wide - wide.max())
    shown = (shifted / shifted.sum()).astype(np.float32)
    return shown
