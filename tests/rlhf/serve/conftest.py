from collections.abc import Iterator

import pytest

from greentrain.rlhf.serve.server import Server
from tests.rlhf.serve.serving import TEMPERATURE, TOKEN, Parts, client, parts


@pytest.fixture(scope="package")
def made() -> Iterator[Parts]:
    one = parts()
    one.scores([[1, 2]])
    yield one
    one.device.close()


@pytest.fixture(scope="package")
def server(made: Parts) -> Iterator[Server]:
    """One server for all that does not need limits of its own; every thread it will ever have is begun."""
    with Server(made.engine, made.text, token=TOKEN) as one:
        with client(one) as asking:
            asking.post("/classify", json={"input": "warm up"}).raise_for_status()
            body = {"prompt": [1, 2], "prompt_logprobs": 0, "temperature": TEMPERATURE}
            asking.post("/v1/completions", json=body).raise_for_status()
            asking.get("/health").raise_for_status()
        yield one
