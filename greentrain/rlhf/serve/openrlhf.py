"""The reward server that OpenRLHF asks (``--reward.remote_url``).

Read in OpenRLHF 0.11 (3c3be62), openrlhf/utils/agent.py and cli/serve_rm.py.
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from greentrain.rlhf.serve import errors
from greentrain.rlhf.serve.errors import Refusal
from greentrain.rlhf.serve.requests import Body, Texts, body_of, request_body
from greentrain.rlhf.serve.scorer import Scorer


class RewardRequest(Body):
    """Texts to be rewarded."""

    query: Texts = Field(description="Each prompt with its answer.")
    prompts: Any = Field(default=None, description="Not read: the query has the prompt in it.")
    labels: Any = Field(default=None, description="Not read.")


class RewardResponse(BaseModel):
    """A reward each, in the order of the query."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


def routes(reward: Scorer) -> APIRouter:
    """Return ``POST /get_reward``."""
    router = APIRouter()

    @router.post(
        "/get_reward",
        response_model=RewardResponse,
        responses=errors.documented(400),
        openapi_extra=request_body(RewardRequest),
    )
    async def get_reward(request: Request) -> JSONResponse:
        """OpenRLHF's remote reward model."""
        asked = await body_of(RewardRequest, request)
        if reward.program.labels != 1:
            raise Refusal(400, f"the model gives {reward.program.labels} scores a text, not one reward: ask /classify")
        found = [float(row[0]) for row in await reward.rows(await reward.ids(asked.query))]
        return JSONResponse({"rewards": found, "scores": found, "extra_logs": {}})

    return router
