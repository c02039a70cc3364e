"""What the adapters share."""

import copy
import functools
import json
import re
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from greentrain.callbacks import driver as driver_module
from greentrain.callbacks.driver import Driver
from greentrain.control.precision.gearbox import compiled_call
from greentrain.errors import ConfigError, GreenTrainWarning, RunFolderError
from greentrain.types import Phase
from greentrain.utils.files import write_json
from greentrain.utils.never_raise import never_raises
from tests.callbacks.conftest import VOCAB, Gears, Recorder, TinyLM, Told, followed

Make = Callable[..., Recorder]


def _start(driver: Driver) -> None:
    driver.start(rank=0, world_size=1, local_rank=0, local_world_size=1, model=TinyLM())


def test_it_takes_whatever_a_session_takes(tmp_path: Path, recorder: Make) -> None:
    session = recorder()
    assert Driver(session).session is session
    assert Driver({"run": {"dir": str(tmp_path)}}).session.config.run.dir == str(tmp_path)
    with pytest.raises(ConfigError, match="carbn"):
        Driver({"carbn": {}})


def test_one_phase_is_open_at_a_time(recorder: Make) -> None:
    session = recorder()
    driver = Driver(session)
    for phase in (Phase.DATA, Phase.DATA, Phase.FORWARD, None, None):
        driver.enter(phase)
    assert session.told == ["+data", "-data", "+forward", "-forward"]


def test_a_running_session_is_used_and_left_running(recorder: Make) -> None:
    session = recorder()
    driver = Driver(session)
    with session:
        folder = session.folder
        _start(driver)
        driver.stop("finished")
        assert session.running
    assert session.folder == folder


def test_a_checkpoint_never_waits_for_the_disk_and_the_end_does(
    tmp_path: Path, recorder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = recorder()
    driver = Driver(session)
    turn = threading.Event()
    writers: list[str] = []

    def slow(path: Path, value: Any) -> None:
        turn.wait()
        writers.append(threading.current_thread().name)
        write_json(path, value)

    monkeypatch.setattr(driver_module, "write_json", slow)
    monkeypatch.setattr(driver_module, "KEPT_S", 60.0)
    with session:
        for step in range(15):
            driver.keep(tmp_path, 0, step)
        path = tmp_path / "greentrain_0.json"
        assert not path.exists()
        threading.Thread(target=turn.set).start()
        driver.stop("finished")
        assert set(json.loads(path.read_text())) == {str(step) for step in range(5, 15)}, "the last ten"
    assert set(writers) == {"greentrain-keep"}
    again = recorder()
    Driver(again).resume(tmp_path, 0, 14)
    with again:
        assert again.folder == session.folder


def test_where_the_disk_hangs_the_end_says_so(tmp_path: Path, recorder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = threading.Event()
    monkeypatch.setattr(driver_module, "write_json", lambda path, value: turn.wait())
    monkeypatch.setattr(driver_module, "KEPT_S", 0.01)
    session = recorder()
    driver = Driver(session)
    with session:
        driver.keep(tmp_path, 0, 1)
        with pytest.warns(GreenTrainWarning, match="last checkpoint may not be kept, as the disk hangs"):
            driver.stop("finished")
    turn.set()
    driver._kept()


@pytest.mark.parametrize("wanted", [True, False])
def test_the_report_of_a_run_that_it_started_is_named_once(
    tmp_path: Path, wanted: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = Driver({"run": {"dir": str(tmp_path), "report": wanted}, "power": {"meters": "null"}})
    _start(driver)
    driver.stop("finished")
    driver.stop("finished")
    said = capfd.readouterr()
    assert said.err == (f"greentrain: report {driver.session.folder}/report.html\n" if wanted else "")
    assert said.out == ""


def test_a_progress_bar_makes_room_for_the_name_of_the_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    driver = Driver({"run": {"dir": str(tmp_path)}, "power": {"meters": "null"}})
    with tqdm(total=2, desc="bar") as bar:
        _start(driver)
        bar.update()
        driver.stop("finished")
    assert re.search(r"\rgreentrain: report \S+report.html\n", capfd.readouterr().err)


def test_what_the_user_got_wrong_is_raised_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    driver = Driver({"run": {"dir": str(tmp_path / "file")}, "power": {"meters": "null"}})
    with pytest.raises(RunFolderError):
        _start(driver)


def test_a_bug_at_the_start_does_not_stop_training(recorder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    session = recorder()
    monkeypatch.setattr(session, "start", lambda place: 1 / 0)
    driver = Driver(session)
    with pytest.warns(GreenTrainWarning, match="could not be started"):
        _start(driver)
    driver.enter(Phase.DATA)
    driver.step()
    driver.stop("finished")


def test_harmless_warns_once_and_goes_on() -> None:
    @never_raises
    def hook() -> int:
        raise ValueError("broken")

    with pytest.warns(GreenTrainWarning, match="broken.*training goes on") as seen:
        assert hook() is None
        assert hook() is None
    assert len(seen) == 1


def test_harmless_survives_warnings_as_errors(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        never_raises(lambda: 1 / 0)()
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


def test_tap_counts_training_and_leaves_no_hook(recorder: Make) -> None:
    session, model = recorder(), TinyLM()
    ids = torch.zeros(2, 5, dtype=torch.int64)
    driver = Driver(session)
    _start(driver)
    driver.tap(model, counts=True, after=Phase.BACKWARD)
    model(ids, labels=ids)
    with torch.no_grad():
        model(ids, labels=ids)  # a reference pass: measured, but these tokens are not trained on
    model.eval()
    model(ids, labels=ids)
    driver.step()
    driver.stop("finished")
    assert session.entered == ["forward", "backward", "forward", "backward", "eval", "step"]
    assert (session.totals().tokens, session.totals().samples) == (10, 2)
    assert session.parameters == sum(p.numel() for p in model.parameters())
    assert not followed(model)


def test_forwards_of_a_phase_of_its_own_are_part_of_it(recorder: Make) -> None:
    session, model = recorder(), TinyLM()
    ids = torch.zeros(2, 5, dtype=torch.int64)
    driver = Driver(session)
    _start(driver)
    driver.tap(model, counts=True, after=Phase.BACKWARD)
    with torch.no_grad(), driver.alone(Phase.GENERATE):
        model(ids, labels=ids)
        model(ids, labels=ids)
    model(ids, labels=ids)
    driver.step()
    driver.stop("finished")
    assert session.entered == ["generate", "forward", "backward", "step"]
    assert session.totals().tokens == 10


def test_a_compiled_model_is_tapped_from_outside(
    recorder: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it otherwise
    session, model = recorder(), TinyLM()
    ids = torch.zeros(2, 5, dtype=torch.int64)
    plain = model(ids, labels=ids)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    driver = Driver(session)
    _start(driver)
    driver.tap(compiled, counts=True, after=None)  # type: ignore[arg-type]
    assert torch.equal(compiled(ids, labels=ids), plain)
    driver.step()
    driver.stop("finished")
    assert session.entered == ["forward", "step"]
    assert session.totals().tokens == 10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, inside its compiler
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_model_that_is_compiled_in_place_keeps_its_counts_and_its_graph_is_whole(recorder: Make, when: str) -> None:
    session, model = recorder(), TinyLM()
    ids = torch.zeros(2, 5, dtype=torch.int64)
    plain, begun = model(ids, labels=ids), list[str]()
    driver = Driver(session)
    _start(driver)
    torch.compiler.reset()
    if when == "before":
        model.compile(backend="eager", fullgraph=True)
    driver.tap(model, counts=True, after=Phase.BACKWARD, first=lambda: begun.append("begun"))
    if when == "after":
        copy.deepcopy(model).compile(backend="eager")
        assert compiled_call(model) is None, "a copy is compiled by itself"
        model.compile(backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(model(ids, labels=ids), plain)
    driver.step()
    with pytest.raises(TypeError):
        model(ids, nonsense=1)
    driver.stop("finished")
    torch.compiler.reset()
    assert session.entered == ["forward", "backward"] * 2 + ["step"] + ["forward", "backward"]
    assert session.totals().tokens == 20 and begun == ["begun"] * 3
    assert torch.equal(model(ids, labels=ids), plain) and session.totals().tokens == 20
    assert not followed(model) and "compile" not in vars(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_optimizer_step_is_followed_without_dynamo_in_the_session(recorder: Make) -> None:
    session, model = recorder(), TinyLM()
    driver, optimizer = Driver(session), torch.optim.SGD(model.parameters(), lr=0.1)
    _start(driver)
    entered: list[bool] = []

    def enter(phase: Phase) -> None:
        entered.append(torch.compiler.is_compiling())
        driver.enter(phase)

    driver.hook(optimizer.register_step_pre_hook, functools.partial(enter, Phase.OPTIMIZER))
    torch.compiler.reset()
    step = torch.compile(optimizer.step, backend="eager")
    ids = torch.zeros(2, 5, dtype=torch.int64)
    for _ in range(2):
        model(ids, labels=ids).backward()
        step()
        driver.enter(None)
    driver.stop("finished")
    torch.compiler.reset()
    assert session.entered == ["optimizer"] * 2 and entered == [False] * 2
    assert not optimizer._optimizer_step_pre_hooks


def test_wrap_restores_the_method(recorder: Make) -> None:
    class Engine:
        def save(self, x: int) -> int:
            return x + 1

    session, engine, calls = recorder(), Engine(), []
    driver = Driver(session)
    driver.wrap(engine, "save", Phase.CHECKPOINT, then=lambda: calls.append(1))
    assert engine.save(1) == 2
    driver.stop("finished")
    assert engine.save(2) == 3
    assert (session.told, calls, vars(engine)) == (["+checkpoint", "-checkpoint"], [1], {})


def test_the_launcher_says_how_many_ranks_a_node_has(recorder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    ranks = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    session = recorder(id="job")
    driver = Driver(session)
    driver.start(rank=5, world_size=8, local_rank=1)
    driver.stop("finished")
    assert session._last is not None
    place = session._last.topology
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (5, 8, 1, 4)


def test_ranks_that_share_a_batch_of_an_accelerator_count_it_once(recorder: Make) -> None:
    """accelerate/parallelism_config.py: cp cuts the sequences of a batch behind the loader, sp (Ulysses) before it."""
    batch, done = torch.zeros(3, 8, dtype=torch.int64), []
    for rank in range(8):
        parallel = types.SimpleNamespace(tp_size=2, cp_size=2)
        accelerator = types.SimpleNamespace(parallelism_config=parallel, process_index=rank, num_processes=8)
        session = recorder(id="job")
        driver = Driver(session)
        found = driver.batches_of(accelerator)
        driver.start(rank=rank, world_size=8, local_rank=rank, local_world_size=8, data_parallel=found)
        driver.add(batch[:, :4])  # what the forward of this rank gets
        driver.step()
        driver.stop("finished")
        done.append((session.totals().tokens, session.totals().samples))
        assert driver.ulysses == 1
    assert (sum(t for t, _ in done), sum(s for _, s in done)) == (2 * 24, 2 * 3)
    alone = types.SimpleNamespace(tp_size=1, cp_size=1, sp_size=1)
    assert driver.batches_of(types.SimpleNamespace(parallelism_config=alone, process_index=0, num_processes=8)) is None
    assert driver.batches_of(None) is None


# -- without a session's threads ----------------------------------------------------------------------------------


@pytest.fixture
def driver(session: Told) -> Driver:
    driver = Driver(None)
    driver.session = session  # type: ignore[assignment]
    return driver


IDS = torch.zeros(2, 5, dtype=torch.int64)


def test_a_step_has_the_batches_since_the_last_one_and_parts_of_a_sequence_are_whole_again(
    driver: Driver, told: list[Any]
) -> None:
    driver.add(IDS)
    driver.add(IDS)
    driver.step()
    driver.step()
    driver.shards = 4  # each rank gets a quarter of every sequence
    driver.add(IDS)
    driver.step()
    driver.add(IDS)
    driver.step(tokens=7)
    driver.add(IDS)
    driver.step(tokens=0)
    assert told == [(20, 4), (0, 0), (40, 2), (7, 2), (0, 2)]


def test_what_was_counted_before_a_run_ended_is_not_the_next_ones(driver: Driver, told: list[Any]) -> None:
    driver.start(rank=0, world_size=1, local_rank=0)
    driver.add(IDS)
    driver.stop("exception")
    driver.stop("exception")
    driver.start(rank=0, world_size=1, local_rank=0)
    driver.step()
    assert told == [(0, 1, 0, 1, None), "exception", (0, 1, 0, 1, None), (0, 0)]


@pytest.mark.parametrize(("said", "local_rank", "size"), [(4, 1, 4), (2, 3, 4), (None, 3, 4)])
def test_a_node_has_at_least_as_many_ranks_as_it_numbers(
    driver: Driver, told: list[Any], monkeypatch: pytest.MonkeyPatch, said: int | None, local_rank: int, size: int
) -> None:
    monkeypatch.setattr("greentrain.callbacks.driver.local_size", lambda rank, world, local_rank: 1)
    driver.start(rank=local_rank, world_size=8, local_rank=local_rank, local_world_size=said)
    assert told == [(local_rank, 8, local_rank, size, None)]


def test_a_parameter_that_deepspeed_has_scattered_counts_as_a_whole(driver: Driver) -> None:
    model = torch.nn.Linear(3, 2)
    vars(model.weight)["ds_numel"] = 600
    driver.start(rank=0, world_size=1, local_rank=0, model=model)
    assert driver.session.parameters == 602


def test_without_a_parallelism_config_the_mesh_of_the_accelerator_tells(driver: Driver) -> None:
    assert driver.batches_of(types.SimpleNamespace(torch_device_mesh="a mesh")) == "a mesh"
    assert driver.batches_of(types.SimpleNamespace()) is None
    parallel = types.SimpleNamespace(tp_size=2, cp_size=3, sp_size=2)
    accelerator = types.SimpleNamespace(parallelism_config=parallel, process_index=25, num_processes=48)
    assert driver.batches_of(accelerator) == (2, 4), "twelve neighbours share a batch"
    assert (driver.shards, driver.ulysses) == (6, 2), "tensor parallel ranks see whole sequences"


def test_a_model_that_had_gears_is_plain_again_before_the_next_gets_them(driver: Driver) -> None:
    gears = driver.session.gears = Gears()  # type: ignore[misc, assignment]
    one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    cpu = torch.device("cpu")
    driver.gear(one, device=cpu, scaler=None)
    driver.gear(torch.nn.DataParallel(one), device=cpu, scaler="a scaler")
    driver.gear(other, device=cpu, scaler=None, wrap_forward=False)
    plain = {"device": cpu, "scaler": None, "wrap_forward": True}
    assert gears.told == [
        "detach",
        ("attach", plain),
        ("attach", {**plain, "scaler": "a scaler"}),
        "detach",
        ("attach", {**plain, "wrap_forward": False}),
    ]
    gears.told.clear()
    driver.bind("an optimizer")
    driver.bind("an engine's", counts=False)
    driver.boundary()
    driver.release()
    assert gears.told == [("bind", "an optimizer", True), ("bind", "an engine's", False), "boundary", "detach"]


def test_without_gears_there_is_nothing_to_shift(driver: Driver, told: list[Any]) -> None:
    driver.gear(torch.nn.Linear(1, 1), device=torch.device("cpu"), scaler=None)
    driver.bind("an optimizer")
    driver.boundary()
    driver.release()
    assert told == []


def test_a_phase_that_is_left_is_the_one_that_was_entered(driver: Driver, told: list[Any]) -> None:
    for phase in (Phase.DATA, Phase.FORWARD, Phase.FORWARD, None):
        driver.enter(phase)
    assert told == ["+data", ("-data", 1), "+forward", ("-forward", 3)]
    driver.enter(Phase.EVAL)
    driver.release()
    assert told[4:] == ["+eval", ("-eval", 5)], "what is open when training ends is no phase of what comes behind it"
    told.clear()
    with driver.nested(Phase.CHECKPOINT):
        driver.enter(Phase.DATA)
    assert told == ["+checkpoint", "+data", ("-checkpoint", 1)]


def test_blocks_that_generate_may_be_nested(driver: Driver, told: list[Any]) -> None:
    model = TinyLM()
    driver.tap(model, counts=True, after=Phase.BACKWARD)
    with torch.no_grad(), driver.alone(Phase.GENERATE):
        with driver.alone(Phase.REWARD):
            model(IDS, labels=IDS)
        model(IDS, labels=IDS)
    model(IDS, labels=IDS)
    phases = [mark for mark in told if isinstance(mark, str)]
    assert phases == ["+generate", "+reward", "+forward", "+backward"]


@pytest.mark.parametrize("counts", [True, False])
def test_only_inputs_of_the_runs_model_count_and_only_in_training(
    driver: Driver, told: list[Any], counts: bool
) -> None:
    model = TinyLM()
    driver.tap(model, counts=counts, after=None)
    model(IDS, IDS)  # by place
    model(input_ids=IDS, labels=IDS)
    with torch.no_grad():
        model(IDS, IDS)
    model.eval()
    model(IDS, IDS)
    driver.step()
    assert told[-1] == ((20, 4) if counts else (0, 0))
    assert [mark for mark in told if isinstance(mark, str)] == ["+forward"] * 3 + ["+eval"]


def test_a_forward_that_fails_is_over(driver: Driver, told: list[Any]) -> None:
    model = TinyLM()
    driver.tap(model, counts=True, after=None)
    with pytest.raises(IndexError):
        model(IDS + VOCAB, IDS)
    assert told == ["+forward", ("-forward", 1)]


def test_an_evaluation_stays_in_its_phase_behind_each_forward(driver: Driver, told: list[Any]) -> None:
    model = TinyLM().eval()
    driver.tap(model, counts=True, after=Phase.BACKWARD)
    model(IDS, IDS)
    assert told == ["+eval"]


def test_a_method_that_somebody_had_replaced_gets_that_back(driver: Driver) -> None:
    class Engine:
        def step(self) -> str:
            return "the class's"

    engine = Engine()
    engine.step = lambda: "the user's"  # type: ignore[method-assign]
    driver.replace(engine, "step", lambda: "ours")
    assert engine.step() == "ours"
    driver.release()
    assert engine.step() == "the user's"
    other = Engine()
    driver.replace(other, "step", lambda: "ours")
    driver.release()
    driver.release()
    assert other.step() == "the class's" and not vars(other)


def test_a_checkpoint_of_rank_0_gives_each_rank_the_run_and_rank_0_its_totals(driver: Driver, told: list[Any]) -> None:
    state = {"run": "one", "totals": {"steps": 3}}
    driver.load(state, 0)
    driver.load(state, 1)
    driver.load({}, 0)
    driver.session.running = True  # type: ignore[misc]
    driver.load(state, 0)
    assert told == [state, {"run": "one", "totals": {}}]
