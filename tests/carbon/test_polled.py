"""Signals that ask a server, against a server that misbehaves."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="the extra 'grid' is not installed")

from greentrain import GreenSession
from greentrain.carbon import polled
from greentrain.carbon.client import Secret, Timeouts
from greentrain.carbon.electricity_maps import ElectricityMaps
from greentrain.carbon.gb import GreatBritain
from greentrain.carbon.polled import GridCache, PolledSignal
from greentrain.carbon.source import GridSource
from greentrain.carbon.watttime import WattTime
from greentrain.testing.signal_contract import SignalContract
from greentrain.types import CarbonBasis, CarbonKind, CarbonSignal
from greentrain.utils.clock import Clock
from tests.carbon.grid_server import (
    CLOCK,
    HOUR_S,
    QUICK,
    Answer,
    GridServer,
    GridTime,
    Reply,
    Request,
    electricity_maps,
    em_hour,
    gb,
    grid_g,
    now,
    serving,
    watttime,
)

TOKEN = "em-key-0123456789"
USER, PASSWORD = "anna@example.org", "w4tt-pass"


def em_source(url: str) -> GridSource:
    return ElectricityMaps("DE", Secret(TOKEN), base_url=url)


def wt_source(url: str) -> GridSource:
    return WattTime("CAISO_NORTH", Secret(USER), Secret(PASSWORD), base_url=url)


def gb_source(url: str) -> GridSource:
    return GreatBritain("GB", base_url=url)


def london(url: str) -> GridSource:
    return GreatBritain("GB-LONDON", base_url=url)


PROVIDERS: dict[str, tuple[Answer, Callable[[str], GridSource]]] = {
    "electricity_maps": (electricity_maps, em_source),
    "watttime": (watttime, wt_source),
    "gb": (gb, gb_source),
    "gb regional": (gb, london),
}


@contextmanager
def following(
    source: GridSource, folder: Path, patience: Timeouts = QUICK, clock: Clock = CLOCK
) -> Iterator[PolledSignal]:
    signal = PolledSignal(source, cache_dir=folder, patience=patience, clock=clock)
    signal.start()
    try:
        yield signal
    finally:
        signal.close()


def until(true: Callable[[], bool], timeout_s: float = 120.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s, "it did not come true in time"
        time.sleep(0.005)


def idle(server: GridServer, quiet_s: float = 0.1) -> int:
    """Wait until nothing is asked any more and return how often it was."""
    before, end_s = -1, time.monotonic() + 60.0
    while before != len(server.requests):
        assert time.monotonic() < end_s, "it asks and asks"
        before = len(server.requests)
        time.sleep(quiet_s)
    return before


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What is warned of, also from threads."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *args, **kwargs: texts.append(str(message))
        yield texts


# -- what it says where all is well ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROVIDERS)
class TestContract(SignalContract):
    @pytest.fixture(autouse=True)
    def _serve(self, name: str, tmp_path: Path) -> Iterator[None]:
        self.opened: list[PolledSignal] = []
        self.folder = tmp_path
        answer, self.source = PROVIDERS[name]
        with serving(answer) as self.server:
            yield
            for signal in self.opened:
                signal.close()

    def make_signal(self) -> CarbonSignal:
        signal = PolledSignal(self.source(self.server.url), cache_dir=self.folder, patience=QUICK, clock=CLOCK)
        self.opened.append(signal)
        signal.start()
        t0, t1 = self.known()
        until(lambda: signal.mean(t0, t1).g_per_kwh is not None)
        until(lambda: len(signal.forecast(now(), 1e12)) > 40)
        return signal

    def known(self) -> tuple[float, float]:
        now_s = now() // HOUR_S * HOUR_S + 1000.0
        return now_s - 20 * 24 * HOUR_S, now_s + 6 * HOUR_S


def test_electricity_maps(tmp_path: Path) -> None:
    with serving(electricity_maps) as server, following(em_source(server.url), tmp_path) as signal:
        assert signal.wait(60.0)
        hour_s = now() // HOUR_S * HOUR_S
        point = signal.mean(hour_s - 5 * HOUR_S, hour_s - 4 * HOUR_S)
        assert point.g_per_kwh == grid_g(hour_s - 5 * HOUR_S)
        assert (point.kind, point.basis, point.accounting) == (
            CarbonKind.ACTUAL,
            CarbonBasis.AVERAGE,
            "consumption, life cycle",
        )
        assert point.issued_unix_s == pytest.approx(hour_s - 4 * HOUR_S + 54, abs=1)
        assert point.source.startswith("Electricity Maps, API v4, 20")
        assert signal.mean(now(), now()).kind is CarbonKind.ESTIMATED
        until(lambda: len(signal.forecast(now(), 1e12)) == 73)
        ahead = signal.forecast(hour_s + 30 * HOUR_S, hour_s + 32 * HOUR_S)
        assert [p.g_per_kwh for p in ahead] == [grid_g(hour_s + 30 * HOUR_S), grid_g(hour_s + 31 * HOUR_S)]
        assert {p.kind for p in ahead} == {CarbonKind.FORECAST}
        assert signal.mean(hour_s + 23 * HOUR_S, hour_s + 24 * HOUR_S).kind is CarbonKind.FORECAST
        assert signal.mean(hour_s + 30 * HOUR_S, hour_s + 31 * HOUR_S).g_per_kwh is None, "too far ahead"
        until(lambda: len(server.requests) == 5)
        assert idle(server) == 5, "what is fresh is not asked for again"
        assert {r.headers["auth-token"] for r in server.requests} == {TOKEN}
        assert all(r.query["zone"] == "DE" and r.query["disableCallerLookup"] == "true" for r in server.requests)
        assert len(signal.history(hour_s - 21 * 24 * HOUR_S, hour_s)) == 21 * 24
        assert signal.problem == ""


def test_watttime_converts_pounds_and_logs_in_once(tmp_path: Path) -> None:
    with serving(watttime) as server, following(wt_source(server.url), tmp_path) as signal:
        assert signal.wait(60.0)
        point = signal.mean(now(), now())
        assert point.g_per_kwh == pytest.approx((1000 + grid_g(now())) * 0.45359237)
        assert (point.kind, point.basis) == (CarbonKind.FORECAST, CarbonBasis.MARGINAL)
        until(lambda: len(server.requests) == 4)
        assert idle(server) == 4
        assert len(server.paths("/login")) == 1
        assert {r.headers["Authorization"] for r in server.requests[1:]} == {"Bearer jwt-of-the-day"}
        past = signal.mean(now() - 2 * HOUR_S, now() - HOUR_S)
        assert past.kind is CarbonKind.ESTIMATED


def test_watttime_logs_in_again_where_the_token_has_run_out(tmp_path: Path) -> None:
    tokens = iter(["first", "second", "third"])
    good = ["first"]

    def answer(request: Request) -> Reply:
        if request.path == "/login":
            return Reply(data={"token": next(tokens)})
        if request.headers["Authorization"] != f"Bearer {good[0]}":
            return Reply(status=401, data={"error": "token expired"})
        if request.path == "/v3/forecast":
            good[0] = "second"  # the next question is refused, once
        return watttime(request)

    with serving(answer) as server, following(wt_source(server.url), tmp_path) as signal:
        until(lambda: len(signal.history(0.0, now())) > 21 * 24 * 12)
        assert len(server.paths("/login")) == 2
        until(lambda: signal.problem == "")  # a connection that broke off on a busy machine is asked again


def test_great_britain_takes_what_was_measured_and_else_the_forecast(tmp_path: Path) -> None:
    with serving(gb) as server, following(gb_source(server.url), tmp_path) as signal:
        until(lambda: len(signal.forecast(now(), 1e12)) >= 95)
        half_s = now() // 1800 * 1800
        past, running = signal.mean(half_s - 3600, half_s - 1800), signal.mean(half_s + 1, half_s + 2)
        assert (past.g_per_kwh, past.kind) == (grid_g(half_s - 3600), CarbonKind.ACTUAL)
        assert (running.g_per_kwh, running.kind) == (grid_g(half_s) + 3, CarbonKind.FORECAST)
        assert "auth-token" not in server.requests[0].headers


def test_a_region_has_no_measurements(tmp_path: Path) -> None:
    with serving(gb) as server, following(london(server.url), tmp_path) as signal:
        assert signal.wait(60.0)
        half_s = now() // 1800 * 1800
        past = signal.mean(half_s - 3600, half_s - 1800)
        assert (past.g_per_kwh, past.kind, past.zone) == (grid_g(half_s - 3600) + 3, CarbonKind.FORECAST, "GB-LONDON")
        assert server.requests[0].path.endswith("/regionid/13")


# -- what it does where things go wrong -----------------------------------------------------------------------------


def test_nothing_is_known_before_the_first_answer_and_nobody_waits(tmp_path: Path) -> None:
    asked_for = threading.Event()

    def answer(request: Request) -> Reply:
        assert asked_for.wait(60.0), "whoever asks for a value waits for the server"
        return Reply(status=500)

    with serving(answer) as server:
        signal = PolledSignal(em_source(server.url), cache_dir=tmp_path, patience=Timeouts(tries=1, silence_s=90.0))
        assert signal.mean(now() - 10, now()).g_per_kwh is None  # which starts the thread
        assert list(signal.forecast(0.0, 1e12)) == list(signal.history(0.0, 1e12)) == []
        until(lambda: len(server.requests) == 1)
        assert signal.mean(now() - 10, now()).g_per_kwh is None and not signal.problem
        asked_for.set()
        signal.close()
        signal.mean(0.0, 1.0)
        assert not any(t.name == "greentrain-electricity_maps" for t in threading.enumerate())


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_fault_of_the_server_is_tried_again(tmp_path: Path, status: int) -> None:
    sick = [2]

    def answer(request: Request) -> Reply:
        sick[0] -= 1
        return Reply(status=status, data={}) if sick[0] == 1 else electricity_maps(request)

    with serving(answer) as server, following(em_source(server.url), tmp_path) as signal:
        assert signal.wait(60.0)
        assert server.paths()[:2] == ["/carbon-intensity/history"] * 2


@pytest.mark.sweep
@pytest.mark.parametrize(
    "bad",
    [
        Reply(status=500, data={}),
        Reply(body=b'{"zone": "DE", "history": [{"zo'),
        Reply(body=b"<html>maintenance</html>"),
        Reply(data={"zone": "DE", "history": [em_hour(0.0)] * 24}, cut=True),
        Reply(silent_s=60.0),
        Reply(status=302, headers={"Location": "http://127.0.0.1:9/"}),
        Reply(status=200, body=b""),
        Reply(data=[1, 2]),
        Reply(data={"history": [{"zone": "DE"}]}),
        Reply(data={"zone": "DE", "history": [{**em_hour(0.0), "datetime": "2024-03-05T20:00:00"}]}),
        Reply(data={"zone": "FR", "history": [em_hour(0.0, zone="FR")]}),
        Reply(data={"zone": "DE", "history": [em_hour(0.0, zone="FR")]}),
        Reply(data={"zone": "DE", "history": [{**em_hour(0.0), "emissionFactorType": "direct"}]}),
        Reply(data={"zone": "DE", "history": [em_hour(0.0, value=-5), em_hour(HOUR_S, value=1e9)]}),
        Reply(body=b'{"zone": "DE", "history": [{"carbonIntensity": NaN, "datetime": "2024-03-05T20:00Z"}]}'),
        Reply(body=b'{"zone": "DE", "history": [{"carbonIntensity": "12", "datetime": "2024-03-05T20:00Z"}]}'),
        Reply(body=b'{"zone": "DE", "history": [{"carbonIntensity": true, "datetime": "2024-03-05T20:00Z"}]}'),
    ],
    ids=lambda reply: f"{reply.status}-{(reply.body or json.dumps(reply.data).encode())[:40]!r}",
)
def test_a_bad_answer_is_no_answer_and_leaves_the_server_alone_for_a_while(
    tmp_path: Path, bad: Reply, told: list[str]
) -> None:
    well = [False]

    def answer(request: Request) -> Reply:
        return electricity_maps(request) if well[0] or not request.path.endswith("history") else bad

    patience = replace(QUICK, silence_s=0.6, tries=1) if bad.silent_s else QUICK
    with serving(answer) as server, following(em_source(server.url), tmp_path, patience) as signal:
        until(lambda: bool(told))
        assert "127.0.0.1" in told[0] and "asking again in 0 s" in told[0] and "training goes on" in told[0]
        assert signal.problem
        well[0] = True
        until(lambda: signal.problem == "")
        times = [r.t_s for r in server.requests if r.path.endswith("history")]
        assert max(b - a for a, b in pairwise(times[:3])) >= 0.14, "it rests after two questions at most"
        assert len(told) == 1, told
        assert signal.mean(now(), now()).g_per_kwh == grid_g(now())


def test_a_redirect_does_not_take_the_key_elsewhere(tmp_path: Path, told: list[str]) -> None:
    with serving(electricity_maps) as elsewhere:
        away = Reply(status=307, headers={"Location": f"{elsewhere.url}/carbon-intensity/history?zone=DE"})
        with serving(lambda r: away) as server, following(em_source(server.url), tmp_path):
            until(lambda: bool(told))
        assert "307" in told[0] and not elsewhere.requests


def test_rests_double(tmp_path: Path, told: list[str]) -> None:
    patience = Timeouts(tries=1, rest_s=0.03, longest_rest_s=0.12, poll_s=0.005)
    with serving(lambda r: Reply(status=500)) as server, following(gb_source(server.url), tmp_path, patience):
        until(lambda: len([p for p in server.paths() if "fw48h" in p]) >= 13)
        times = [r.t_s for r in server.requests if "fw48h" in r.path]
        gaps = [b - a for a, b in pairwise(times)]
        assert gaps[0] >= 0.03 and gaps[1] >= 0.06 and min(gaps[2:]) >= 0.12
        unbounded_s = [0.03 * 2**i for i in range(len(gaps))]  # up to a minute by now
        assert any(gap < rest for gap, rest in zip(gaps, unbounded_s, strict=True)), "longer than the longest rest"


def test_too_many_requests_stop_all_questions_for_as_long_as_the_server_asks(tmp_path: Path, told: list[str]) -> None:
    tired = [True]

    def answer(request: Request) -> Reply:
        return Reply(status=429, headers={"Retry-After": "1"}) if tired[0] else gb(request)

    with serving(answer) as server, following(gb_source(server.url), tmp_path) as signal:
        until(lambda: bool(told))
        tired[0] = False
        assert "429" in told[0]
        until(lambda: len(server.requests) > 1)
        rested_s = server.requests[1].t_s - server.requests[0].t_s
        assert 0.95 <= rested_s < 60.0, "one question, not tried again before the server's word is over"
        until(lambda: signal.mean(now(), now()).g_per_kwh is not None)


@pytest.mark.parametrize("skew_s", [0.0, 5 * HOUR_S])
def test_a_date_to_retry_after_is_one_of_the_servers_clock(tmp_path: Path, told: list[str], skew_s: float) -> None:
    def answer(request: Request) -> Reply:
        until_s = now() + skew_s + 1000
        return Reply(status=503, headers={"Retry-After": formatdate(until_s, usegmt=True)})

    with serving(answer) as server:
        server.skew_s = skew_s
        with following(gb_source(server.url), tmp_path):
            until(lambda: bool(told))
        assert 900 <= float(told[0].partition("asking again in ")[2].partition(" s")[0]) <= 1000


def test_too_many_requests_without_a_word_rest_by_themselves(tmp_path: Path, told: list[str]) -> None:
    with serving(lambda r: Reply(status=429)) as server, following(gb_source(server.url), tmp_path):
        until(lambda: len(server.requests) >= 3)
        times = [r.t_s for r in server.requests]
        assert times[1] - times[0] >= 0.15 and times[2] - times[1] >= 0.3
        assert len(told) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_final_and_said_once_with_its_remedy(tmp_path: Path, told: list[str], status: int) -> None:
    body = {"message": f"bad key {TOKEN}"}
    with serving(lambda r: Reply(status=status, data=body)) as server:
        with following(em_source(server.url), tmp_path) as signal:
            assert not signal.wait(60.0)
            assert idle(server) == 1
            assert signal.mean(now(), now()).g_per_kwh is None
        assert len(told) == 1
        assert str(status) in told[0] and "ELECTRICITY_MAPS_TOKEN" in told[0] and TOKEN not in told[0]


@pytest.mark.parametrize("status", [403, 404])
def test_a_plan_without_forecasts_does_without(tmp_path: Path, told: list[str], status: int) -> None:
    def answer(request: Request) -> Reply:
        return electricity_maps(request) if request.path.endswith("history") else Reply(status=status, data={})

    with serving(answer) as server, following(em_source(server.url), tmp_path) as signal:
        assert signal.wait(60.0)
        until(lambda: len(told) == 4)
        assert idle(server) == 5, "neither the forecast nor a range is asked for twice"
        assert "'forecast'" in told[0] and "'past-1'" in told[1]
        hour_s = now() // HOUR_S * HOUR_S
        later = signal.mean(hour_s + 2 * HOUR_S, hour_s + 2.5 * HOUR_S)
        assert (later.g_per_kwh, later.kind) == (grid_g(hour_s), CarbonKind.ESTIMATED), "the last value is held"
        assert signal.mean(hour_s + 2 * HOUR_S, hour_s + 3.1 * HOUR_S).g_per_kwh is None, "not for longer than 2 h"
        assert list(signal.forecast(0.0, 1e12)) == []


def test_a_wrong_password_is_final(tmp_path: Path, told: list[str]) -> None:
    refuse = Reply(status=401, data={"error": USER})
    with serving(lambda r: refuse) as server, following(wt_source(server.url), tmp_path) as signal:
        assert not signal.wait(60.0)
        assert idle(server) == 1
    assert len(told) == 1 and "WATTTIME_PASSWORD" in told[0]
    assert USER not in told[0] and PASSWORD not in told[0]


@pytest.mark.parametrize(
    "change", [{"region": "PJM_DC"}, {"units": "kg_co2_per_mwh"}, {"signal_type": "health_damage"}]
)
def test_watttime_of_another_region_unit_or_signal_is_refused(
    tmp_path: Path, told: list[str], change: dict[str, str]
) -> None:
    def answer(request: Request) -> Reply:
        reply = watttime(request)
        if request.path != "/login":
            reply.data["meta"].update(change)
        return reply

    with serving(answer) as server, following(wt_source(server.url), tmp_path) as signal:
        until(lambda: bool(told))
        assert next(iter(change.values())) in told[0]
        assert signal.mean(now(), now()).g_per_kwh is None


def test_another_region_of_britain_is_refused(tmp_path: Path, told: list[str]) -> None:
    def answer(request: Request) -> Reply:
        reply = gb(request)
        reply.data["data"]["regionid"] = 1
        return reply

    with serving(answer) as server, following(london(server.url), tmp_path) as signal:
        until(lambda: bool(told))
        assert "region 1, not 13" in told[0]
        assert signal.mean(now(), now()).g_per_kwh is None


def test_single_odd_values_are_left_out_and_null_is_not_zero(tmp_path: Path, told: list[str]) -> None:
    def answer(request: Request) -> Reply:
        reply = gb(request)
        if "fw48h" not in request.path:
            reply.data["data"][10]["intensity"] = {"forecast": None, "actual": None, "index": None}
            reply.data["data"][20]["intensity"] = {"forecast": 5001, "actual": -0.1, "index": "low"}
        return reply

    with serving(answer) as server, following(gb_source(server.url), tmp_path) as signal:
        until(lambda: bool(told))
        assert "1 values are left out (-0.1 is not between 0 and 5000 gCO2e/kWh)" in told[0]
        start_s = now() // 1800 * 1800 - 24 * HOUR_S - 1800
        until(lambda: signal.mean(start_s + 5, start_s + 6).g_per_kwh is not None)  # told first, then kept
        held = [signal.mean(start_s + i * 1800 + 5, start_s + i * 1800 + 6) for i in (10, 20)]
        assert [p.kind for p in held] == [CarbonKind.ESTIMATED] * 2
        assert [p.g_per_kwh for p in held] == [grid_g(start_s + i * 1800) for i in (9, 19)]
        assert min(p.g_per_kwh or 0.0 for p in signal.history(0.0, 1e12)) >= 100


@pytest.mark.parametrize("skew_s", [-6 * HOUR_S, 6 * HOUR_S])
def test_clocks_that_differ_are_told_and_harm_nothing(tmp_path: Path, told: list[str], skew_s: float) -> None:
    def answer(request: Request) -> Reply:
        reply = electricity_maps(request)
        for hour in reply.data.get("history", ()):
            hour["updatedAt"] = formatted(now() + skew_s)
        return reply

    def formatted(t_s: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(t_s))

    with serving(answer) as server:
        server.skew_s = skew_s
        with following(em_source(server.url), tmp_path) as signal:
            assert signal.wait(60.0)
            until(lambda: len(signal.forecast(now(), 1e12)) == 73)
            point = signal.mean(now() - 5, now())
            assert point.g_per_kwh == grid_g(now())
            assert point.issued_unix_s == pytest.approx(now() + skew_s, abs=5)
            until(lambda: bool(told))
    assert len(told) == 1 and "differ by 6.0 h" in told[0]


def test_a_clock_of_ours_that_is_far_off_knows_nothing_rather_than_something_wrong(
    tmp_path: Path, told: list[str]
) -> None:
    class Off(GridTime):
        def unix_s(self) -> float:
            return now() + 90 * 24 * HOUR_S

    with serving(electricity_maps) as server, following(em_source(server.url), tmp_path, clock=Off()) as signal:
        until(lambda: bool(told))
        assert "differ by 2160.0 h" in told[0]
        idle(server)
        assert signal.mean(Off().unix_s() - 5, Off().unix_s()).g_per_kwh is None


def test_a_server_that_is_not_there(tmp_path: Path, told: list[str]) -> None:
    with serving(gb) as server:
        url = server.url
    with following(gb_source(url), tmp_path) as signal:
        until(lambda: bool(told))
        assert "127.0.0.1 cannot be reached" in told[0]
        assert signal.mean(now(), now()).g_per_kwh is None


def test_closing_does_not_wait_for_a_server_that_drips(tmp_path: Path) -> None:
    patience, closed = Timeouts(silence_s=90.0, answer_s=120.0), threading.Event()

    def answer(request: Request) -> Reply:
        assert closed.wait(60.0), "closing waits for the server"
        return Reply(status=500)

    with serving(answer) as server:
        signal = PolledSignal(gb_source(server.url), cache_dir=tmp_path, patience=patience, clock=CLOCK)
        signal.start()
        until(lambda: len(server.requests) == 1)
        thread = signal._thread
        signal.close()
        signal.close()
        assert thread is not None and thread.is_alive(), "it was left to its own timeout"
        closed.set()
        thread.join(60.0)


def test_it_can_be_started_again(tmp_path: Path) -> None:
    with serving(gb) as server:
        signal = PolledSignal(gb_source(server.url), cache_dir=tmp_path, patience=QUICK, clock=CLOCK)
        signal.start()
        signal.start()
        assert signal.wait(60.0)
        signal.close()
        assert signal.mean(now(), now()).g_per_kwh is not None, "what is known stays known"
        assert not [t for t in threading.enumerate() if t.name == "greentrain-gb"]
        signal.start()
        until(lambda: len([t for t in threading.enumerate() if t.name == "greentrain-gb"]) == 1)
        signal.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_knows_what_was_known_and_asks_for_itself(tmp_path: Path) -> None:
    with serving(gb) as server, following(gb_source(server.url), tmp_path) as signal:
        assert signal.wait(60.0)
        idle(server)
        signal._lock.acquire()  # as if another thread were starting it at the fork
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = b"no"
            try:
                known = signal.mean(now(), now()).g_per_kwh is not None
                alive = signal._thread is not None and signal._thread.is_alive()
                signal.close()
                code = b"ok" if known and alive else b"no"
            finally:
                os.write(write, code)
                os._exit(0)
        signal._lock.release()
        os.waitpid(pid, 0)
        assert os.read(read, 2) == b"ok"
        os.close(read)
        os.close(write)
        assert signal._thread is not None and signal._thread.is_alive()


# -- the cache ------------------------------------------------------------------------------------------------------


def test_another_process_reads_what_one_has_fetched(tmp_path: Path) -> None:
    with serving(electricity_maps) as server:
        with following(em_source(server.url), tmp_path):
            until(lambda: len(server.requests) == 5)
            idle(server)
        with following(em_source(server.url), tmp_path) as other:
            assert other.wait(60.0)
            assert other.mean(now(), now()).g_per_kwh == grid_g(now())
            assert len(other.forecast(now(), 1e12)) == 73
            assert idle(server) == 5


def test_of_many_at_once_one_asks(tmp_path: Path) -> None:
    with serving(electricity_maps) as server:
        signals = [
            PolledSignal(em_source(server.url), cache_dir=tmp_path, patience=QUICK, clock=CLOCK) for _ in range(6)
        ]
        for signal in signals:
            signal.start()
        try:
            until(lambda: all(len(s.history(0.0, 1e12)) > 500 for s in signals))
            assert idle(server) == 5
        finally:
            for signal in signals:
                signal.close()


def test_whoever_holds_the_lock_is_waited_for_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(gb) as server:
        cache = GridCache(gb_source(server.url).facts, tmp_path)
        with cache.claim() as mine, following(gb_source(server.url), tmp_path) as signal:
            assert mine
            time.sleep(0.2)
            assert not server.requests
            monkeypatch.setattr(polled, "_PATIENT_S", 0.1)
            until(lambda: signal.mean(now(), now()).g_per_kwh is not None)


def test_of_many_processes_one_asks(tmp_path: Path) -> None:
    code = """
import sys, time
from greentrain.carbon.electricity_maps import ElectricityMaps
from greentrain.carbon.client import Secret
from greentrain.carbon.polled import PolledSignal
from tests.carbon.grid_server import QUICK
url, folder = sys.argv[1:]
signal = PolledSignal(ElectricityMaps("DE", Secret("k"), base_url=url), cache_dir=folder, patience=QUICK)
signal.start()
end_s = time.monotonic() + 60
while len(signal.history(0.0, 1e12)) < 540 and time.monotonic() < end_s:
    time.sleep(0.01)
signal.close()  # which lets it write what it has
print(len(signal.history(0.0, 1e12)) >= 540)
"""
    with serving(electricity_maps) as server:
        command = [sys.executable, "-c", code, server.url, str(tmp_path)]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        assert [child.communicate()[0].strip() for child in children] == ["True"] * 3
        assert len(server.requests) == 5
        assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".lock"}, "no part of a file is left"


@pytest.mark.parametrize("damage", ["torn", "empty", "old", "other", "wrong value", "nonsense"])
def test_a_damaged_cache_is_no_cache(tmp_path: Path, damage: str) -> None:
    with serving(electricity_maps) as server:
        with following(em_source(server.url), tmp_path):
            until(lambda: len(server.requests) == 5)
            idle(server)
        (path,) = tmp_path.glob("*.json")
        data = json.loads(path.read_text())
        path.write_text(
            {
                "torn": path.read_text()[:-100],
                "empty": "",
                "old": json.dumps({**data, "format": 0}),
                "other": json.dumps({**data, "zone": "FR"}),
                "wrong value": json.dumps({**data, "readings": [[0.0, 3600.0, -1.0, "actual", None, 0.0]]}),
                "nonsense": json.dumps([1, 2, 3]),
            }[damage]
        )
        with following(em_source(server.url), tmp_path) as signal:
            until(lambda: len(server.requests) == 10)
            assert signal.mean(now(), now()).g_per_kwh == grid_g(now())


def test_an_old_cache_is_read_and_what_is_stale_asked_for_again(tmp_path: Path) -> None:
    class Later(GridTime):
        def unix_s(self) -> float:
            return now() + 1000

    with serving(electricity_maps) as server:
        with following(em_source(server.url), tmp_path):
            until(lambda: len(server.requests) == 5)
            idle(server)
        with following(em_source(server.url), tmp_path, clock=Later()) as signal:
            assert signal.wait(60.0)
            until(lambda: len(server.requests) >= 6)
            idle(server)
            assert [p.rpartition("/")[2] for p in server.paths()[5:]] == ["history"]


def test_a_cool_down_holds_for_all_processes(tmp_path: Path, told: list[str]) -> None:
    with serving(lambda r: Reply(status=429, headers={"Retry-After": "600"})) as server:
        for _ in range(3):
            with following(gb_source(server.url), tmp_path) as signal:
                signal.wait(60.0)
        assert idle(server) == 1


def test_without_a_place_for_the_cache_every_process_asks(tmp_path: Path, told: list[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with serving(gb) as server, following(gb_source(server.url), blocked / "below") as signal:
        assert signal.wait(60.0)
        until(lambda: bool(told))
        assert len(told) == 1 and "GREENTRAIN_CACHE_DIR" in told[0] and "carbon.cache_dir" in told[0]
        assert signal.mean(now(), now()).g_per_kwh is not None


def test_no_key_is_ever_written_or_said(
    tmp_path: Path, told: list[str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    sick = [False]

    def either(good: Answer) -> Answer:
        def answer(request: Request) -> Reply:
            sick[0] = not sick[0]
            echo = {"error": f"{TOKEN} {USER} {PASSWORD}", "headers": request.headers}
            return Reply(status=500, data=echo) if sick[0] else good(request)

        return answer

    shown: list[str] = []
    for good, source in ((electricity_maps, em_source), (watttime, wt_source)):
        with serving(either(good)) as server, following(source(server.url), tmp_path) as signal:
            until(lambda: len(signal.history(0.0, 1e12)) > 500)
            shown += [repr(signal), repr(vars(signal)), repr(signal.describe()), signal.problem]
            shown += [repr(vars(signal._source.key)), repr(signal.mean(now(), now()))]
        refuse = lambda r: Reply(status=401, data=r.headers)  # noqa: E731
        with serving(refuse) as server, following(source(server.url), tmp_path) as signal:
            signal.wait(60.0)
            shown += [signal.problem]
    files = [p.read_text() for p in tmp_path.rglob("*") if p.is_file()]
    assert any("readings" in text for text in files)
    out = capfd.readouterr()
    for text in (*shown, *files, *told, caplog.text, out.out, out.err, *map(str, tmp_path.rglob("*"))):
        for secret in (TOKEN, USER, PASSWORD, "jwt-of-the-day"):
            assert secret not in text


def test_a_run_is_priced_and_its_folder_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", TOKEN)
    config = {"power": {"meters": ["cpu_model"]}, "run": {"dir": str(tmp_path / "runs"), "live": False, "book_s": 0.5}}
    with serving(electricity_maps) as server, following(em_source(server.url), tmp_path / "cache") as signal:
        assert signal.wait(60.0)
        with GreenSession(config, signal=signal) as green:
            time.sleep(0.3)
            green.step(tokens=1)
        totals, folder = green.totals(), green.folder
    assert totals.energy_j > 0 and totals.emissions_g > 0
    assert folder is not None
    texts = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert any("Electricity Maps, API v4" in text for text in texts)
    assert not any(TOKEN in text for text in texts)
