"""The clients of other projects against the server: TRL's own code, and what OpenRLHF and verl send and read."""

import asyncio
from typing import Any

import aiohttp
import numpy as np
import pytest
import requests
import torch
from trl.generation.vllm_client import VLLMClient

from greentrain.rlhf.client import ServeClient
from greentrain.rlhf.serve.server import Server
from tests.rlhf.serve.serving import TEMPERATURE, TOKEN, Parts, client

ROWS = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]
TEXTS = ["a good answer", "a bad one", "none"]


def with_token(server: Server) -> str:
    return server.url.replace("//", f"//greentrain:{TOKEN}@")


async def posted(url: str, payload: Any) -> Any:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=payload) as response:
        response.raise_for_status()
        return await response.json()


def test_trl_reads_log_probabilities_bit_for_bit(server: Server, made: Parts) -> None:
    """trl 1.16, generation/vllm_client.py. Its constructor wants vLLM installed; everything behind it is run."""
    asking = VLLMClient.__new__(VLLMClient)
    asking.session = requests.Session()
    asking.base_url = with_token(server)
    with asking.session:
        asking.check_server()
        asking.model = asking._get(f"{asking.base_url}/v1/models")["data"][0]["id"]
        found = asking.get_sequence_logprobs(
            ROWS, [2, 1, 1], top_logprobs=0, temperature=TEMPERATURE, chunk_size=2, max_concurrent_requests=2
        )
        for row, prompt, got, want in zip(ROWS, [2, 1, 1], found["actual_logprobs"], made.logprobs(ROWS), strict=True):
            assert np.array_equal(np.array([value for (value,) in got], np.float32), want[prompt - 1 :])
            assert len(got) == len(row) - prompt
        assert found["logprobs"][0] == [[], [], []], "the best tokens are not known, and not made up"
        with pytest.raises(Exception, match="top_logprobs=0"):
            asking.get_sequence_logprobs(ROWS, [1, 1, 1], top_logprobs=5, temperature=TEMPERATURE)
        with pytest.raises(Exception, match=r"compiled with 0[.]5"):
            asking.get_sequence_logprobs(ROWS, [1, 1, 1], top_logprobs=0, temperature=1.0)


def test_openrlhf_reads_rewards(server: Server, made: Parts) -> None:
    """OpenRLHF 0.11 (3c3be62): utils/agent.py _fetch_rewards_via_http, trainer/ppo_utils/samples_generator.py."""

    async def asked() -> list[Any]:
        bodies = [{"query": [text], "prompts": [text[:3]], "labels": [None]} for text in TEXTS]
        return await asyncio.gather(*(posted(f"{with_token(server)}/get_reward", body) for body in bodies))

    wanted = made.scores(made.ids(TEXTS))
    for found, want in zip(asyncio.run(asked()), wanted, strict=True):
        reward, score = torch.tensor([found.get("rewards")]), torch.tensor([found.get("scores")])
        assert reward.shape == (1, 1) and reward.item() == want == score.item()
        assert found.get("extra_logs") == {}


def test_verl_reads_a_reward(server: Server, made: Parts) -> None:
    """verl 0.10.dev (1dda039): experimental/reward_loop/reward_loop.py compute_score_disrm, for vllm."""
    address = with_token(server).removeprefix("http://")
    payload: dict[str, Any] = {"model": "path/of/the/trainer", "input": TEXTS[0], "use_activation": False}
    output = asyncio.run(posted(f"http://{address}/classify", payload))
    found = output["data"][-1]["probs"][-1]
    assert np.float32(found) == made.scores(made.ids(TEXTS[:1]))[0]


def test_our_own_client_gets_the_same(server: Server, made: Parts) -> None:
    with ServeClient(server.url, token=TOKEN, batch=2) as asking:
        rewards = made.scores(made.ids(TEXTS))
        assert asking.rewards(TEXTS) == rewards.tolist()
        for got, want in zip(asking.logprobs(ROWS, temperature=TEMPERATURE), made.logprobs(ROWS), strict=True):
            assert np.array_equal(np.array(got, np.float32), want)


@pytest.mark.parametrize(
    "given", ["some text", ["some text", "another"], [3, 4, 5], [[3, 4, 5], [6]]], ids=["text", "texts", "ids", "lists"]
)
def test_classify_takes_all_four_kinds_and_activates_unless_told(server: Server, made: Parts, given: Any) -> None:
    with client(server) as asking:
        raw = asking.post("/classify", json={"input": given, "use_activation": False}).json()
        shown = asking.post("/classify", json={"input": given}).json()
    rows = given if isinstance(given[0], list) else [given]
    rows = given if isinstance(given, list) and isinstance(given[0], str) else rows
    ids = made.ids(rows) if isinstance(rows[0], str) else rows
    assert [item["probs"] for item in raw["data"]] == [[score] for score in made.scores(ids).tolist()]
    for one, two in zip(raw["data"], shown["data"], strict=True):
        assert two["probs"][0] == pytest.approx(1 / (1 + np.exp(-one["probs"][0])), abs=1e-7)
    assert raw["usage"]["prompt_tokens"] == sum(map(len, ids))


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("/classify", {"input": [1] * 65}, "65 tokens; compiled for 1 to 64"),
        ("/classify", {"input": "w " * 65}, "65 tokens.*--too-long truncate"),
        ("/classify", {"input": [1, 101]}, "token id 101.*0 to 100"),
        ("/classify", {"input": [-1]}, "token id -1"),
        ("/classify", {"input": [2**70]}, "integers"),
        ("/classify", {"input": []}, "input: .*give a text"),
        ("/classify", {"input": [[1], []]}, "none of them empty"),
        ("/classify", {"input": [True]}, "give a text"),
        ("/classify", {"input": [1.5]}, "give a text"),
        ("/classify", {"input": ["a", 1]}, "at least one text"),
        ("/classify", {"input": [[1]] * 1025}, "1025 sequences.*at most 1024"),
        ("/classify", {"input": [1], "use_activation": "no"}, "use_activation: .*boolean"),
        ("/get_reward", {"prompts": ["a"]}, "query: Field required"),
        ("/get_reward", {"query": "a"}, "query: .*list of at least one text"),
        ("/v1/completions", {"prompt": [1, 2], "temperature": 0.5}, "prompt_logprobs is None"),
        ("/v1/completions", {"prompt": [1, 2], "prompt_logprobs": 0}, "temperature is 1.0, .* 0.5"),
        ("/v1/completions", {"prompt": [1], "prompt_logprobs": 0, "temperature": 0.5, "max_tokens": 9}, "send 1"),
        ("/v1/completions", {"prompt": [1], "prompt_logprobs": 0, "temperature": 0.5, "n": 2}, "n is 2"),
        ("/v1/completions", {"prompt": [1], "prompt_logprobs": 0, "temperature": 0.5, "stream": True}, "stream is"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(server: Server, route: str, body: Any, words: str) -> None:
    with client(server) as asking:
        answer = asking.post(route, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == 400 and error["type"] == "BadRequestError"
    with pytest.raises(ValueError, match=words):
        raise ValueError(error["message"])


def test_a_prompt_may_be_text_and_one_token_has_no_log_probability(server: Server, made: Parts) -> None:
    common = {"prompt_logprobs": 0, "temperature": TEMPERATURE, "max_tokens": 1}
    with client(server) as asking:
        text = asking.post("/v1/completions", json={"prompt": "two words", **common}).json()
        one = asking.post("/v1/completions", json={"prompt": [7], **common}).json()
    ids = made.ids(["two words"])
    entry = {"logprob": float(made.logprobs(ids)[0][0]), "rank": None, "decoded_token": None}
    assert text["choices"][0]["prompt_logprobs"] == [None, {str(ids[0][1]): entry}]
    assert one["choices"][0]["prompt_logprobs"] == [None]
