"""The scripts that the integration tests run in processes of their own: worker.py JOB OPTIONS_AS_JSON."""

import json
import os
import signal
import sys
import time
from typing import Any

from greentrain import GreenSession


def say(**words: Any) -> None:
    """Tell the test something."""
    print(json.dumps(words), flush=True)


def loop(green: GreenSession, seconds: float, steps_per_s: float = 50.0) -> int:
    """Take steps of 10 tokens for a while, and return how many."""
    end_s, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        with green.phase("forward"):
            time.sleep(1 / steps_per_s)
        green.step(tokens=10)
        steps += 1
    return steps


def plain(
    config: dict[str, Any],
    seconds: float = 1.0,
    fits: int = 1,
    state: dict[str, Any] | None = None,
    gate: str = "",
    until: str = "",
) -> None:
    """One or several fits in a row, which begin when a file is there, and go on until another is, if they are named."""
    if gate:
        import torch  # noqa: F401 - what takes long is behind it

        say(ready=True)
        while not os.path.exists(gate):
            time.sleep(0.01)
    green = GreenSession(config)
    green.load_state_dict(state or {})
    for _ in range(fits):
        with green:
            say(running=True, pid=os.getpid())
            steps = loop(green, seconds)
            while until and not os.path.exists(until):
                steps += loop(green, 0.1)
        say(folder=str(green.folder), totals=green.totals().to_dict(), steps=steps)


def checkpointed(config: dict[str, Any], before_s: float, after_s: float) -> None:
    """Train, checkpoint, go on."""
    green = GreenSession(config).start()
    loop(green, before_s)
    green.checkpoint()
    say(state=green.state_dict())
    loop(green, after_s)
    green.close()


def gloo(
    config: dict[str, Any], seconds: float = 1.0, when: str = "before", fits: int = 1, late_s: float = 0.0
) -> None:
    """Two ranks that reduce a number, the group initialised before or after the session's start.

    With ``late_s`` each fit has a session of its own and rank 0 comes late to all but the first.
    """
    import torch
    import torch.distributed as dist

    if when == "before":
        dist.init_process_group("gloo")
    green = GreenSession(config)
    for fit in range(fits):
        if fit and late_s:
            green = GreenSession(config)
            time.sleep(late_s if dist.get_rank() == 0 else 0.0)
        green.start()
        if when == "after" and fit == 0:
            dist.init_process_group("gloo")
        number = torch.ones(1)
        dist.all_reduce(number)
        loop(green, seconds)
        dist.barrier()
        green.close()
        say(folder=str(green.folder), sum=number.item())
    dist.destroy_process_group()


def trained(
    config: dict[str, Any],
    tokens: list[list[int]],
    late_s: list[float],
    kill: list[int] | None = None,
    data_parallel: int | None = None,
    saves: str = "",
) -> None:
    """Ranks that train one model together, as torchrun starts them, and go on from their last checkpoint.

    Args:
        config: Settings of the session.
        tokens: Tokens of each rank at each step; ranks that share a batch have the same.
        late_s: How late each rank comes to its session (s).
        kill: A rank and the step after which it dies, of the first start.
        data_parallel: How many batches there are at a time; None: one a rank.
        saves: Folder of the checkpoints.
    """
    from datetime import timedelta
    from pathlib import Path

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    rank = dist.get_rank()
    time.sleep(late_s[rank])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shared = None if data_parallel is None else (rank % data_parallel, data_parallel)
    green = GreenSession(config, data_parallel=shared)
    save, first = Path(saves, f"{rank}.json"), 0
    if save.exists():
        held = json.loads(save.read_text())
        first = held["step"]
        green.load_state_dict(held["green"])
    longest_s, gears = 0.0, []

    def timed(call: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal longest_s
        begun_s = time.monotonic()
        try:
            return call(*args, **kwargs)
        finally:
            longest_s = max(longest_s, time.monotonic() - begun_s)

    timed(green.start)
    green.watch(model, optimizer)
    for step in range(first, len(tokens[rank])):
        model(torch.ones(2, 32)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        timed(green.step, tokens=tokens[rank][step])
        gears.append("" if green.gears is None else str(green.gears.box.gear))
        if kill == [rank, step]:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 10 == 9:
            timed(green.checkpoint)
            state = timed(green.state_dict)
            dist.barrier()  # as a framework does: a checkpoint is one of all ranks
            save.with_suffix(".new").write_text(json.dumps({"step": step + 1, "green": state}))
            save.with_suffix(".new").replace(save)
    dist.barrier()
    timed(green.close)
    say(rank=rank, folder=str(green.folder), longest_s=longest_s, gears=gears, first=first)
    dist.barrier()
    dist.destroy_process_group()


def spawned(config: dict[str, Any], seconds: float = 1.0, port: int = 0, world: int = 2) -> None:
    """What a hand-written launcher does: torch.multiprocessing, rank as an argument, no RANK variable."""
    from torch.multiprocessing.spawn import spawn

    spawn(_spawned_rank, args=(config, seconds, port, world), nprocs=world)  # type: ignore[no-untyped-call]


def _spawned_rank(rank: int, config: dict[str, Any], seconds: float, port: int, world: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    with GreenSession(config) as green:
        loop(green, seconds)
        dist.barrier()
    dist.destroy_process_group()


def ends(config: dict[str, Any], how: str) -> None:
    """End in many ways while a session is open."""
    if how == "handler before":
        signal.signal(signal.SIGTERM, lambda *_: say(handler="user", running=green.running))
    green = GreenSession(config).start()
    if how == "handler after":
        signal.signal(signal.SIGTERM, lambda *_: say(handler="user", running=green.running))
    say(running=True, folder=str(green.folder))
    if how in ("wait", "handler before", "handler after"):
        loop(green, 0.6)
        say(survived=True)
    loop(green, 0.5)
    say(t_s=time.time())
    if how == "wait":
        loop(green, 60)
    elif how == "sys.exit":
        sys.exit(3)
    elif how == "exception":
        raise RuntimeError("training failed")
    elif how == "os._exit":
        os._exit(4)


def interrupted(config: dict[str, Any]) -> None:
    """Ctrl-C in a with block."""
    with GreenSession(config) as green:
        loop(green, 0.3)
        say(running=True, folder=str(green.folder))
        loop(green, 60)


def loaders(config: dict[str, Any], method: str, epochs: int) -> None:
    """A DataLoader with workers, and a forked child that leaves through the session's own with block."""
    import torch
    from torch.utils.data import DataLoader

    data: Any = torch.arange(40.0)
    with GreenSession(config) as green:
        for _ in range(epochs):
            for batch in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=method):
                with green.phase("forward"):
                    time.sleep(0.02)
                green.step(samples=len(batch))
        say(workers_done=True)
    say(totals=green.totals().to_dict(), folder=str(green.folder))


def forked(config: dict[str, Any]) -> None:
    """A child that is forked in the with block and ends it by itself."""
    parent = os.getpid()
    with GreenSession(config) as green:
        steps = loop(green, 0.2)
        child = os.fork()
        steps += loop(green, 0.2)
        green.checkpoint()
        if child:
            os.waitpid(child, 0)
            steps += loop(green, 0.6)
    if os.getpid() == parent:
        say(totals=green.totals().to_dict(), folder=str(green.folder), steps=steps)


def weights(config: dict[str, Any] | None, steps: int = 30) -> None:
    """Train a small net and tell a digest of its weights, with or without a session."""
    import hashlib

    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    green = None if config is None else GreenSession(config).start()
    if green is not None:
        green.watch(net, optimizer)
        say(running=True)
    for _ in range(steps):
        x = torch.randn(16, 8)
        loss = torch.nn.functional.mse_loss(net(x), x[:, :4].sin())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if green is not None:
            green.step(samples=16)
            time.sleep(0.02)
    if green is not None:
        green.close()
        say(totals=green.totals().to_dict(), folder=str(green.folder))
    data = b"".join(p.detach().numpy().tobytes() for p in net.parameters()) + repr(loss.item()).encode()
    say(digest=hashlib.sha256(data + torch.get_rng_state().numpy().tobytes()).hexdigest())


JOBS = {
    job.__name__: job
    for job in (plain, checkpointed, gloo, trained, spawned, ends, interrupted, loaders, forked, weights)
}

if __name__ == "__main__":
    JOBS[sys.argv[1]](**json.loads(sys.argv[2]))
