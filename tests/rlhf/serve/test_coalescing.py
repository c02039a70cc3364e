"""Many clients, one device: every answer is the right one, also when the device fails meanwhile."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.coalescer import Coalescer
from greentrain.rlhf.serve.dialects import MANY_TOKENS
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.server import Server
from tests.rlhf.serve.serving import LONGEST, TEMPERATURE, TOKEN, Answer, Parts, client, from_many, parts, posted

RNG = np.random.default_rng(0)
CLIENTS = 128
ROWS = [RNG.integers(1, 100, int(RNG.integers(1, LONGEST))).tolist() for _ in range(2 * CLIENTS)]


def classified(answers: Sequence[Answer]) -> list[float]:
    for answer in answers:
        assert answer.status == 200, answer.body
    return [answer.body["data"][-1]["probs"][-1] for answer in answers]


def bodies_of(rows: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    return [{"input": row, "use_activation": False} for row in rows]


@pytest.fixture
def own() -> Iterator[Parts]:
    one = parts()
    yield one
    one.device.close()


def waited(what: Any, limit_s: float = 10.0) -> None:
    end_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.005)


@pytest.mark.parametrize("batch", [1, 64], ids=["alone", "coalesced"])
def test_128_clients_get_their_own_answers_bit_for_bit(own: Parts, batch: int) -> None:
    wanted = own.scores(ROWS[:CLIENTS])
    own.device.batches.clear()
    own.device.gate.clear()
    with Server(own.engine, token=TOKEN, limits=ServeLimits(batch_sequences=batch)) as server:
        threading.Timer(0.5, own.device.gate.set).start()
        found = classified(asyncio.run(from_many(server, bodies_of(ROWS[:CLIENTS]))))
    assert found == wanted.tolist()
    assert sum(own.device.batches) == CLIENTS
    assert max(own.device.batches) == (1 if batch == 1 else 64)


def test_log_probabilities_and_rewards_mix_and_large_requests_are_cut(own: Parts) -> None:
    rows = ROWS[:160]
    assert sum(map(len, rows)) > MANY_TOKENS, "so the answer is written in a thread"
    body = {"prompt": rows, "prompt_logprobs": 0, "temperature": TEMPERATURE}
    limits = ServeLimits(batch_sequences=16, batch_tokens=128)
    wanted, scores = own.logprobs(rows), own.scores(rows)
    own.device.batches.clear()
    with Server(own.engine, token=TOKEN, limits=limits) as server, client(server) as asking:
        choices = asking.post("/v1/completions", json=body).json()["choices"]
        many = asking.post("/classify", json={"input": rows, "use_activation": False}).json()["data"]
    assert [item["probs"][0] for item in many] == scores.tolist()
    for row, choice, want in zip(rows, choices, wanted, strict=True):
        got = [
            entry[str(token)]["logprob"] for token, entry in zip(row[1:], choice["prompt_logprobs"][1:], strict=True)
        ]
        assert np.array_equal(np.array(got, np.float32), want)
    assert sum(own.device.batches) == 320 and max(own.device.batches) <= 16 and len(own.device.batches) > 10


def test_a_window_collects_on_an_idle_device(own: Parts) -> None:
    with Server(own.engine, token=TOKEN, limits=ServeLimits(window_s=0.3, batch_sequences=4)) as server:
        classified(asyncio.run(from_many(server, bodies_of(ROWS[:10]))))
    assert sorted(own.device.batches) == [2, 4, 4], "full ones begin at once, the rest when the window ends"


def test_who_goes_away_leaves_the_queue_and_disturbs_nobody(own: Parts) -> None:
    wanted = own.scores(ROWS[:3])
    own.device.batches.clear()
    own.device.gate.clear()
    with Server(own.engine, token=TOKEN) as server:
        queue = server.application.coalescers[PassKind.REWARD]

        async def ask() -> list[float]:
            first = asyncio.create_task(from_many(server, bodies_of(ROWS[:1])))
            await asyncio.to_thread(waited, lambda: queue.running == 1)
            impatient = asyncio.create_task(from_many(server, bodies_of(ROWS[1:2])))
            await asyncio.to_thread(waited, lambda: queue.waiting == 1)
            patient = asyncio.create_task(from_many(server, bodies_of(ROWS[2:3])))
            await asyncio.to_thread(waited, lambda: queue.waiting == 2)
            impatient.cancel()
            await asyncio.to_thread(waited, lambda: queue.waiting == 1)
            own.device.gate.set()
            return classified(await first) + classified(await patient)

        assert asyncio.run(ask()) == wanted[[0, 2]].tolist()
        assert own.device.batches == [1, 1], "the one who left was not computed"
        with client(server) as asking:
            assert 'route="/classify",status="closed"} 1.0' in asking.get("/metrics").text


def test_a_full_queue_and_a_slow_device_are_said_at_once(own: Parts) -> None:
    own.device.gate.clear()
    with Server(own.engine, token=TOKEN, limits=ServeLimits(waiting=2, request_s=0.5)) as server:
        answers = asyncio.run(from_many(server, bodies_of(ROWS[:8])))
        statuses = sorted(answer.status for answer in answers)
        assert set(statuses) == {503, 504} and statuses.count(504) in (2, 3, 4)
        for answer in answers:
            if answer.status == 503:
                assert answer.headers["retry-after"] == "1"
                assert "come again" in answer.body["error"]["message"]
        assert server.application.coalescers[PassKind.REWARD].waiting == 0
        own.device.gate.set()
        wanted = own.scores(ROWS[:1]).tolist()
        assert classified([asyncio.run(posted(server, bodies_of(ROWS[:1])[0]))]) == wanted


def test_a_device_that_fails_under_load_is_redone_at_home() -> None:
    home = Emulator()
    one = parts(home=home)
    try:
        wanted = one.scores(ROWS)
        one.device.failures = iter([True, False, False] * 100)
        limits = ServeLimits(batch_sequences=8)
        with Server(one.engine, token=TOKEN, limits=limits) as server, pytest.warns(UserWarning, match="redone"):
            assert classified(asyncio.run(from_many(server, bodies_of(ROWS[:CLIENTS])))) == wanted[:CLIENTS].tolist()
            threading.Timer(0.05, one.device.inner.close).start()
            assert classified(asyncio.run(from_many(server, bodies_of(ROWS[CLIENTS:])))) == wanted[CLIENTS:].tolist()
            with client(server) as asking:
                metrics = asking.get("/metrics").text
                assert asking.get("/health").status_code == 200
        redone = next(line for line in metrics.splitlines() if line.startswith("greentrain_offload_redone_total{"))
        assert float(redone.split()[-1]) >= 6
    finally:
        one.device.close()
        home.close()


def test_a_device_that_hangs_costs_one_timeout_and_then_home_answers() -> None:
    home = Emulator()
    one = parts(home=home)
    try:
        wanted = one.scores(ROWS[:8]).tolist()
        one.device.hang()
        with (
            Server(one.engine, token=TOKEN, limits=ServeLimits(request_s=0.5)) as server,
            pytest.warns(UserWarning, match="did not answer|redone"),
        ):
            late = asyncio.run(from_many(server, bodies_of(ROWS[:8])))
            assert {answer.status for answer in late} <= {200, 504}  # home may need longer on a busy machine
            waited(lambda: not server.application.coalescers[PassKind.REWARD].running, 240.0)
        asked = len(one.device.batches)
        with Server(one.engine, token=TOKEN) as server:  # the engine knows by now, whatever time a request has
            assert classified(asyncio.run(from_many(server, bodies_of(ROWS[:8])))) == wanted
        assert len(one.device.batches) == asked, "at home at once"
    finally:
        one.device.close()
        home.close()


def test_a_device_that_fails_without_a_home_is_503_with_the_reason(own: Parts) -> None:
    own.device.failures = iter([True] * 3)  # fewer are tried again without a word to the client
    with Server(own.engine, token=TOKEN) as server, client(server) as asking:
        failed = asking.post("/classify", json={"input": [1, 2]})
        assert failed.status_code == 503 and "told to fail" in failed.json()["error"]["message"]
        assert asking.post("/classify", json={"input": [1, 2]}).status_code == 200
        own.device.inner.close()
        assert asking.post("/classify", json={"input": [1, 2]}).status_code == 503
        down = asking.get("/health")
        assert down.status_code == 503 and "reward pass has no device (emulator" in down.json()["error"]["message"]
        with client(server, token=None) as stranger:
            said = stranger.get("/health")
        assert said.status_code == 503 and "emulator" not in said.text, "strangers do not learn what runs here"


def test_a_fault_of_ours_is_500_and_in_the_log(
    own: Parts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: Any) -> Any:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(own.engine, "submit", faulty)
    with Server(own.engine, token=TOKEN) as server, client(server) as asking:
        failed = asking.post("/classify", json={"input": [1, 2]})
    assert failed.status_code == 500 and "see the server's log" in failed.json()["error"]["message"]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a fault"]


def test_a_queue_is_closed_twice_without_harm(own: Parts) -> None:
    own.device.gate.clear()
    rows = [np.array(row, np.int32) for row in ROWS[:3]]

    async def close() -> list[Any]:
        queue = Coalescer(own.engine, PassKind.REWARD, ServeLimits(batch_sequences=1))
        asked = [asyncio.create_task(queue.run([row])) for row in rows]
        await asyncio.to_thread(waited, lambda: queue.running == 1 and queue.waiting == 2)
        queue.close()
        queue.close()
        own.device.gate.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    first, *others = asyncio.run(close())
    assert first[0].shape == (1,) and [other.status for other in others] == [503, 503]


def test_closing_lets_running_requests_finish_and_refuses_the_rest(own: Parts) -> None:
    own.device.gate.clear()
    wanted = own.scores  # the gate is shut: asked for below
    server = Server(own.engine, token=TOKEN)
    queue = server.application.coalescers[PassKind.REWARD]
    answers: list[Answer] = []
    asked = threading.Thread(target=lambda: answers.extend(asyncio.run(from_many(server, bodies_of(ROWS[:2])))))
    asked.start()
    waited(lambda: queue.running == 1)
    threading.Timer(0.3, own.device.gate.set).start()
    server.close()
    asked.join(10.0)
    assert classified(answers) == wanted(ROWS[:2]).tolist()
    with pytest.raises(httpx.ConnectError), client(server) as asking:
        asking.get("/health")


def test_closing_does_not_wait_for_a_device_that_hangs(own: Parts) -> None:
    own.device.gate.clear()
    server = Server(own.engine, token=TOKEN, limits=ServeLimits(drain_s=0.3))
    queue = server.application.coalescers[PassKind.REWARD]
    answers: list[Answer] = []
    asked = threading.Thread(target=lambda: answers.extend(asyncio.run(from_many(server, bodies_of(ROWS[:2])))))
    asked.start()
    waited(lambda: queue.running == 1)
    server.close()
    asked.join(120.0)
    assert not own.device.passed and not asked.is_alive() and not server.is_alive, "the device hangs on"
    assert [answer.status for answer in answers] == [503, 503]
