"""What the server's answers must look like: OpenRLHF's, vLLM's and SGLang's, as their clients take them."""

from typing import Any

from pydantic import BaseModel


class RewardResponse(BaseModel):
    """A reward each, in the order of the query."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


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


class Answer(BaseModel):
    """What every answer with a list has."""

    object: str
    model: str
    usage: Usage


class ClassifyResponse(Answer):
    """As vLLM's."""

    id: str
    created: int
    data: list[Classified]


class TokenLogprob(BaseModel):
    """Of one token."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class CompletionChoice(BaseModel):
    """Of one sequence."""

    index: int
    text: str
    logprobs: None
    finish_reason: str
    prompt_logprobs: list[dict[str, TokenLogprob] | None]


class CompletionResponse(Answer):
    """As vLLM's."""

    id: str
    created: int
    choices: list[CompletionChoice]


class ServerHealth(BaseModel):
    """That every pass has a device."""

    status: str


class ListedModel(BaseModel):
    """A pass, as vLLM lists models."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ListedModels(BaseModel):
    """All passes."""

    object: str
    data: list[ListedModel]


ANSWERS: dict[tuple[str, str], type[BaseModel]] = {
    ("/get_reward", "post"): RewardResponse,
    ("/classify", "post"): ClassifyResponse,
    ("/v1/completions", "post"): CompletionResponse,
    ("/v1/models", "get"): ListedModels,
    ("/health", "get"): ServerHealth,
}


def with_answers(document: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI document that says what each route answers."""
    for (path, method), model in ANSWERS.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= schema.pop("$defs", {})
        document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"] = schema
    return document
