"""The clients of benchmarks/rlhf_server.py: a process that imports nothing but the standard library."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any


def asking(pipe: Any) -> None:
    """Answer arguments of ``_all`` with what it returns, until None comes."""
    while (work := pipe.recv()) is not None:
        pipe.send(asyncio.run(_all(*work)))


async def _all(
    url: str, sequences: Sequence[Sequence[int]], clients: int, requests: int
) -> tuple[float, list[tuple[int, float, float]]]:
    """Return the time of all, and number of the sequence, seconds and score of each answer."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    bodies = [json.dumps({"input": row, "use_activation": False}).encode() for row in sequences]

    async def one(number: int) -> list[tuple[int, float, float]]:
        reader, writer = opened[number]
        found = []
        for turn in range(requests):
            index = (number * requests + turn) % len(bodies)
            begun_s = time.perf_counter()
            head = "POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length:"
            writer.write(f"{head} {len(bodies[index])}\r\n\r\n".encode() + bodies[index])
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            content = json.loads(await reader.readexactly(size))
            score = content["data"][-1]["probs"][-1] if b" 200 " in answer[:16] else float("nan")
            found.append((index, time.perf_counter() - begun_s, score))
        writer.close()
        return found

    opened = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(clients)))
    await asyncio.sleep(0.05)  # the server has accepted them by then
    begun_s = time.perf_counter()
    found = await asyncio.gather(*(one(number) for number in range(clients)))
    return time.perf_counter() - begun_s, [item for some in found for item in some]
