"""What showing a running job costs: a step with exporters on and off, the background thread, and a scrape.

    python benchmarks/export_cost.py                          # two minutes on two idle cores
    python benchmarks/export_cost.py --quick                  # to see that it runs
    python benchmarks/export_cost.py --into docs/monitoring.md

No GPU and no network: eight devices of constant power, and a collector on this machine that throws away what it gets.
A step is one ``green.step()``, called without a pause, so that whatever holds the interpreter shows in the mean. The
ways take turns; each figure is the median of its runs, with the smallest and the largest.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.marks import put
from benchmarks.metering import machine
from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor

DEVICES: Final = 8
PORT: Final = 19_464
BLOCK: Final = 1000
"""Steps that are timed together."""
PAUSE_S: Final = 0.02
"""Between two blocks, so that a run makes no more marks than it can hold."""


class EightGpus:
    """Devices of constant power, read at no cost."""

    def __init__(self) -> None:
        self.sensors: Sequence[Sensor] = [
            Sensor(
                device=Device(uid=f"GPU-{i}", kind=DeviceKind.GPU, name="Flat GPU"),
                provenance=Provenance.MEASURED,
                method="constant",
                period_s=0.1,
                shared=False,
            )
            for i in range(DEVICES)
        ]

    def read(self) -> list[PowerSample]:
        """Return 300 W of each."""
        t_s = time.monotonic()
        return [PowerSample(device_uid=one.device.uid, t_s=t_s, power_w=300.0) for one in self.sensors]

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run."""

    step_median_us: float
    step_mean_us: float
    background: float
    """CPU time of all other threads, as a share of wall time."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each way")
    parser.add_argument("--quick", action="store_true", help="one run of a second and a half each")
    parser.add_argument("--into", type=Path, help="file between whose marks the tables go")
    wanted = parser.parse_args(argv)
    if wanted.quick:
        wanted.seconds, wanted.repeats = 1.5, 1
    with tempfile.TemporaryDirectory() as folder, _collector() as endpoint:
        ways = _ways(Path(folder), endpoint)
        found: dict[str, list[Cost]] = {name: [] for name in ways}
        for _ in range(wanted.repeats):
            for name, export in ways.items():
                found[name].append(_run(Path(folder), export, wanted.seconds, scraped=name == "Prometheus, scraped"))
        scrapes_s, size = _scrapes(Path(folder), 20 if wanted.quick else 500)
    text = "\n\n".join([_made("benchmarks/export_cost.py"), _steps(found), _scrape_table(scrapes_s, size)])
    print(text)
    if wanted.into is not None:
        put(text, wanted.into)
    return 0


def _ways(folder: Path, endpoint: str) -> Mapping[str, Mapping[str, Any]]:
    return {
        "nothing": {},
        "Prometheus": {"prometheus": {"port": PORT}},
        "Prometheus, scraped": {"prometheus": {"port": PORT}},
        "textfile": {"prometheus": {"textfile": str(folder / "textfiles")}},
        "OpenTelemetry": {"otel": {"endpoint": endpoint, "interval_s": 1.0}},
    }


def _session(folder: Path, export: Mapping[str, Any]) -> GreenSession:
    config = {"run": {"dir": str(folder / "runs"), "report": False}, "export": dict(export)}
    return GreenSession(config, meter=EightGpus(), signal=ConstantSignal(360.0, zone="test", source="test"))


def _run(folder: Path, export: Mapping[str, Any], seconds: float, *, scraped: bool) -> Cost:
    ended = threading.Event()
    scraper = threading.Thread(target=_scrape_every_second, args=(ended,))
    blocks: list[float] = []
    with _session(folder, export) as green:
        if scraped:
            scraper.start()
        wall_s, process_s, own_s = time.monotonic(), time.process_time(), time.thread_time()
        while time.monotonic() - wall_s < seconds:
            start_s = time.perf_counter()
            for _ in range(BLOCK):
                green.step(tokens=1)
            blocks.append((time.perf_counter() - start_s) / BLOCK * 1e6)
            time.sleep(PAUSE_S)
        others_s = time.process_time() - process_s - (time.thread_time() - own_s)
        wall_s = time.monotonic() - wall_s
        ended.set()
        if scraped:
            scraper.join()
    return Cost(
        step_median_us=statistics.median(blocks),
        step_mean_us=statistics.fmean(blocks),
        background=others_s / wall_s,
    )


def _scrape_every_second(ended: threading.Event) -> None:
    while not ended.wait(1.0):
        _scrape()


def _scrape() -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
        return bytes(answer.read())


def _scrapes(folder: Path, count: int) -> tuple[list[float], int]:
    """Return times of scrapes of a run that has booked (s), and the size of the page (bytes)."""
    times, text = [], b""
    with _session(folder, {"prometheus": {"port": PORT}}) as green:
        green.step(tokens=1)
        end_s = time.monotonic() + 10
        while b"greentrain_emissions_grams_total{" not in text and time.monotonic() < end_s:
            time.sleep(0.2)
            text = _scrape()
        for _ in range(count):
            start_s = time.perf_counter()
            text = _scrape()
            times.append(time.perf_counter() - start_s)
    return sorted(times), len(text)


@contextmanager
def _collector() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Throw it away."""
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _made(script: str) -> str:
    facts = machine(script)
    return "\n".join(f"- {name}: {text}" for name, text in facts.items())


def _steps(found: Mapping[str, Sequence[Cost]]) -> str:
    lines = ["| exported | `step()`, median µs | `step()`, mean µs | other threads, % of a core |", "|---|---|---|---|"]
    for name, costs in found.items():
        cells = [
            _spread(costs, lambda cost: cost.step_median_us),
            _spread(costs, lambda cost: cost.step_mean_us),
            _spread(costs, lambda cost: 100 * cost.background),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(costs: Sequence[Cost], of: Callable[[Cost], float]) -> str:
    values = sorted(map(of, costs))
    return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"


def _scrape_table(times_s: Sequence[float], size: int) -> str:
    last = times_s[min(len(times_s) - 1, int(0.99 * len(times_s)))]
    return (
        "| scrape of one rank with 8 devices | |\n|---|---|\n"
        f"| median | {1e3 * statistics.median(times_s):.2f} ms |\n| 99th percentile | {1e3 * last:.2f} ms |\n"
        f"| size of the page | {size:,} bytes |\n| scrapes | {len(times_s)} |"
    )


if __name__ == "__main__":
    sys.exit(main())
