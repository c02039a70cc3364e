"""What Prometheus reads, above all: joules with their provenance, and no sample where nobody knows them."""

from prometheus_client.parser import text_string_to_metric_families

from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.app import Metrics
from greentrain.rlhf.serve.server import Server
from greentrain.testing.offload_models import encoder
from tests.rlhf.serve.serving import LONGEST, TOKEN, Parts, client


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return values by name and labels."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


def joules(device: Emulator) -> list[tuple[tuple[str, ...], float]]:
    try:
        engine = OffloadEngine([place(PassKind.REWARD, encoder(), device)])
        found = samples(Metrics(engine).text().decode())
    finally:
        device.close()
    return [(key, value) for key, value in found.items() if key[0] == "greentrain_device_energy_joules_total"]


def test_joules_say_where_they_come_from_and_are_never_made_up() -> None:
    ((key, value),) = joules(Emulator(card=assume(U55C)))
    assert key[-1] == "modelled" and value >= 0
    assert joules(Emulator()) == [], "the CPU's joules are not this device's, and 0 would be a lie"


def test_batches_requests_and_the_engine_s_sums_are_counted(made: Parts) -> None:
    before = made.engine.stats()[PassKind.REWARD]
    with Server(made.engine, made.text, token=TOKEN, too_long="truncate") as server, client(server) as asking:
        asking.post("/classify", json={"input": [[1, 2, 3], [4]]}).raise_for_status()
        long = asking.post("/classify", json={"input": "word " * 99, "use_activation": False}).json()
        asking.post("/classify", json={"input": [1] * 99})
        found = samples(asking.get("/metrics").text)
    ids = made.ids(["word " * 99])
    assert len(ids[0]) == LONGEST == long["usage"]["prompt_tokens"]
    assert long["data"][0]["probs"] == made.scores(ids).tolist()
    assert found["greentrain_serve_truncated_texts_total", "reward"] == 1
    assert found["greentrain_serve_requests_total", "/classify", "200"] == 2
    assert found["greentrain_serve_requests_total", "/classify", "400"] == 1, "token ids are never cut"
    assert found["greentrain_serve_request_seconds_count", "/classify"] == 3
    assert found["greentrain_serve_batch_sequences_sum", "reward"] == 3
    assert found["greentrain_serve_batch_sequences_count", "reward"] == 2
    assert found["greentrain_serve_waiting_sequences", "reward"] == 0
    assert found["greentrain_offload_calls_total", "reward"] == before.calls + 2
    assert found["greentrain_offload_tokens_total", "reward"] == before.tokens + 4 + LONGEST
    assert found["greentrain_offload_busy_seconds_total", "reward"] > before.busy_s
