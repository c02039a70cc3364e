"""The daemon against its clients, as real processes, and against those who attack it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from greentrain.config.schema import ClocksConfig
from greentrain.control.actuators import daemon as daemon_module
from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.clocks import open_clocks
from greentrain.control.actuators.daemon import Daemon, DaemonConfig, Peer, Rule, load_daemon_config
from greentrain.errors import ConfigError, GreenTrainError
from greentrain.power.daemon_client import DaemonClient, DaemonError, find_daemon, survey_daemon
from greentrain.power.rapl import RaplMeter
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu
from greentrain.types import Provenance, Topology
from greentrain.utils import private_files
from tests.control.actuators.on_fake import ADMIN_W, FREE_MHZ, Node, Said, capping, wait_until
from tests.helpers.users import STRANGER, as_root

ME = str(os.geteuid())
GRANT: dict[str, Any] = {"power_w": (300.0, 600.0), "graphics_mhz": (210.0, 1410.0), "memory_mhz": (800.0, 2000.0)}
Serve = Callable[..., Daemon]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a daemon of this process, for this user unless rules say another; the driver is installed before."""
    place = tmp_path / "d.sock"
    monkeypatch.setenv("GREENTRAIN_DAEMON_SOCKET", str(place))
    monkeypatch.setattr(daemon_module, "LOOK_S", 0.01)
    with ExitStack() as stack:

        def start(*rules: Rule, requests_per_s: float = 10_000.0, connections: int = 32, **more: Any) -> Daemon:
            config = DaemonConfig(
                allow=rules or (Rule(users=(ME,), **GRANT),), requests_per_s=requests_per_s, connections=connections
            )
            more = {"powercap": tmp_path / "none", "say": lambda line: None, **more}
            made = Daemon(config, socket_path=str(place), state=str(tmp_path / "state"), **more)
            stack.callback(made.close)
            return made

        yield start


def ask(words: bytes, path: str | None = None) -> tuple[int, bytes]:
    """Send bytes as they are, and return status and body."""
    with closing(socket.socket(socket.AF_UNIX)) as one:
        one.settimeout(30.0)
        one.connect(path or os.environ["GREENTRAIN_DAEMON_SOCKET"])
        with suppress(BrokenPipeError):
            one.sendall(words)
        heard = b""
        with suppress(ConnectionResetError):
            while piece := one.recv(65536):
                heard += piece
    head, _, body = heard.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head.startswith(b"HTTP/") else 0, body


def post(path: str, more: bytes = b"") -> tuple[int, bytes]:
    return ask(b"POST " + path.encode() + b" HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n" + more + b"\r\n")


HOLDER = """
import sys, time
from greentrain.power.daemon_client import DaemonClient
client = DaemonClient(sys.argv[1])
for uuid in list(client.gpus):
    client.set(uuid, "set_power_limit", power_limit_mw=400000)
    client.set(uuid, "set_gpu_locked_clocks", min_clock_mhz=210, max_clock_mhz=990)
    client.set(uuid, "set_mem_locked_clocks", min_clock_mhz=800, max_clock_mhz=1593)
print("set", flush=True)
sys.stdin.readline()
print("after", flush=True)
time.sleep(120)
"""


@pytest.fixture
def holder() -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """Start a client that holds all GPUs until it is killed."""
    running = []

    def start() -> "subprocess.Popen[str]":
        words = [sys.executable, "-c", HOLDER, os.environ["GREENTRAIN_DAEMON_SOCKET"]]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(child)
        assert child.stdout is not None and child.stdout.readline() == "set\n"
        return child

    yield start
    for child in running:
        child.kill()
        child.communicate()


def test_a_job_without_rights_caps_and_locks_through_it(node: Node, serve: Serve) -> None:
    fake, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    serve()
    with capping(said, fractions=(1.0, 0.8, 0.6, 0.4)) as cap:
        assert cap.guardian.daemon is None, "who has the right needs no daemon"
    fake.update(0, may_set=False)
    with pytest.MonkeyPatch.context() as patch:
        _rights_for_the_daemon_alone(patch, fake)
        with capping(said, fractions=(1.0, 0.9, 0.8, 0.4)) as cap:
            assert cap.guardian.daemon is not None and cap.guardian.pid is None
            assert cap.fractions == (1.0, 0.9, 0.8), "260 W is below what is allowed"
            assert cap.apply(0.8) and fake.state(0).power_limit_w == 520.0
            clocks = open_clocks(ClocksConfig(), Topology(), said)
            assert clocks is not None and clocks.apply(0.3) and fake.state(0).gpu_clocks_mhz == (210, 990)
            clocks.close()
            assert fake.state(0).gpu_clocks_mhz == FREE_MHZ
        assert fake.state(0).power_limit_w == ADMIN_W
    assert [one for one in said if "left out" not in one] == []


def _rights_for_the_daemon_alone(patch: pytest.MonkeyPatch, fake: FakeDriver) -> None:
    """Let only threads of the daemon set anything: the fake driver of one process knows one right for all."""
    import pynvml

    for name in ("SetPowerManagementLimit", "SetGpuLockedClocks", "ResetGpuLockedClocks"):
        real = getattr(pynvml, f"nvmlDevice{name}")

        def limited(handle: Any, *args: Any, real: Any = real) -> Any:
            if not threading.current_thread().name.startswith("greentrain-daemon"):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
            return real(handle, *args)

        patch.setattr(pynvml, f"nvmlDevice{name}", limited)
    fake.update(0, may_set=True)


def test_whatever_ends_a_client_its_gpus_are_as_they_were_found(
    node: Node, serve: Serve, holder: Callable[[], "subprocess.Popen[str]"]
) -> None:
    fake, said = node(FakeGpu(limit_w=ADMIN_W), FakeGpu()), Said()
    served = serve(say=said.append)
    child = holder()
    assert [fake.state(i).power_limit_w for i in (0, 1)] == [400.0, 400.0]
    assert fake.state(1).gpu_clocks_mhz == (210, 990) and fake.state(1).memory_clocks_mhz == (800, 1593)
    status, body = post("/gpu/set_power_limit?gpu_ids=0,1&power_limit_mw=500000&block=true")
    assert status == 409 and f"process {child.pid}" in body.decode(), "who holds it is said"
    child.send_signal(signal.SIGKILL)
    assert wait_until(lambda: all(fake.state(i).gpu_clocks_mhz == FREE_MHZ for i in (0, 1)))
    assert wait_until(lambda: not guardian_main.records(served._state))
    assert [fake.state(i).power_limit_w for i in (0, 1)] == [ADMIN_W, 700.0]
    assert fake.state(0).memory_clocks_mhz == (1593, 1593)
    assert any("holds it" in one for one in said) and any("has ended" in one for one in said)


def test_what_somebody_else_set_meanwhile_stays(
    node: Node, serve: Serve, holder: Callable[[], "subprocess.Popen[str]"]
) -> None:
    fake = node(FakeGpu(limit_w=ADMIN_W))
    served = serve()
    child = holder()
    fake.update(0, limit_w=555.0)
    child.kill()
    assert wait_until(lambda: not guardian_main.records(served._state))
    assert fake.state(0).power_limit_w == 555.0 and fake.state(0).gpu_clocks_mhz == FREE_MHZ


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=299999&block=true", 403, "outside 300 to 600"),
        ("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=600001&block=true", 403, "outside 300 to 600"),
        ("/gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=100&max_clock_mhz=990&block=true", 403, "outside 210"),
        ("/gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=990&max_clock_mhz=210&block=true", 400, "above"),
        ("/gpu/set_mem_locked_clocks?gpu_ids=0&min_clock_mhz=800&max_clock_mhz=9999&block=true", 403, "outside 800"),
        ("/gpu/set_power_limit?gpu_ids=0,1&power_limit_mw=500000&block=true", 403, "may not set power_w"),
        ("/gpu/set_power_limit?gpu_ids=7&power_limit_mw=500000&block=true", 400, "there is no GPU 7"),
        ("/gpu/set_power_limit?gpu_ids=2&power_limit_mw=500000&block=true", 400, "MIG is on"),
        ("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=-5&block=true", 400, "whole number"),
        ("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=5e5&block=true", 400, "whole number"),
        ("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=500000&block=yes", 400, "true or false"),
        ("/gpu/set_power_limit?gpu_ids=0&gpu_ids=0&power_limit_mw=500000&block=true", 400, "twice"),
        ("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=500000&block=true&more=1", 400, "takes gpu_ids"),
        ("/gpu/set_power_limit?power_limit_mw=500000&block=true", 400, "takes gpu_ids"),
        ("/gpu/set_power_limit?gpu_ids=0,&power_limit_mw=500000&block=true", 400, "numbers"),
        ("/gpu/set_power_profiles?gpu_ids=0&mask=1&block=true", 403, "may not set profiles"),
        ("/gpu/set_power_profiles?gpu_ids=0&mask=0x1&block=true", 400, "hexadecimal"),
        ("/gpu/explode?gpu_ids=0&block=true", 404, "nothing that this daemon does"),
        ("/../gpu/set_power_limit", 404, "nothing that this daemon does"),
    ],
)
def test_what_is_out_of_range_or_malformed_changes_nothing(
    node: Node, serve: Serve, path: str, status: int, words: str
) -> None:
    fake = node(FakeGpu(limit_w=ADMIN_W), FakeGpu(), FakeGpu(mig_uuids=("MIG-1",)))
    serve(Rule(users=(ME,), gpus=("0", "2"), **GRANT))
    found, body = post(path)
    assert (found, words in body.decode()) == (status, True), body
    assert [fake.state(i).power_limit_sets + fake.state(i).gpu_clock_sets for i in range(3)] == [0, 0, 0]


def test_bytes_that_are_no_request_end_their_connection_only(node: Node, serve: Serve) -> None:
    node(FakeGpu())
    serve()
    assert ask(b"\x00\xff\r\n\r\n")[0] in (0, 400)
    assert ask(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n")[0] in (0, 414)
    assert post("/discover", b"X: " + b"y" * 8192 + b"\r\n")[0] == 0, "a head above its bound"
    body = b"POST /gpu/set_power_limit HTTP/1.1\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    assert ask(body)[0] == 413
    assert ask(b"POST /discover HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n")[0] == 413
    assert find_daemon() is not None


def test_who_is_in_no_rule_may_not_even_look(node: Node, serve: Serve) -> None:
    fake = node(FakeGpu())
    serve(Rule(users=(str(STRANGER),), **GRANT))
    assert post("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=500000&block=true")[0] == 403
    with pytest.raises(DaemonError, match=f"user {ME} is in no rule"):
        DaemonClient(os.environ["GREENTRAIN_DAEMON_SOCKET"])
    assert "not for this user" in survey_daemon() and find_daemon() is None
    assert fake.state(0).power_limit_sets == 0


@as_root
def test_another_user_is_known_by_the_kernel_whatever_it_says(node: Node, serve: Serve, tmp_path: Path) -> None:
    node(FakeGpu())
    serve(Rule(users=(ME,), **GRANT))
    for folder in (tmp_path, *tmp_path.parents):
        if len(folder.parts) > 2:
            folder.chmod(folder.stat().st_mode | 0o055)
    code = f"""
import os, socket
os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})
s = socket.socket(socket.AF_UNIX); s.connect({os.environ["GREENTRAIN_DAEMON_SOCKET"]!r})
s.sendall(b"GET /discover HTTP/1.1\\r\\nX-User: root\\r\\nConnection: close\\r\\n\\r\\n")
print(s.recv(65536).decode(), s.recv(65536).decode())
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert "403" in done.stdout and f"user {STRANGER} is in no rule" in done.stdout


def test_groups_and_users_without_names(node: Node, serve: Serve) -> None:
    node(FakeGpu())
    own = guardian_main.this_process()
    serve(Rule(groups=("4242",), **GRANT), peer=lambda connection: Peer(os.getpid(), STRANGER, 4242, own))
    assert "gpu-control" in DaemonClient(os.environ["GREENTRAIN_DAEMON_SOCKET"]).groups


def test_a_process_that_the_daemon_does_not_see_may_read_only(node: Node, serve: Serve) -> None:
    node(FakeGpu())
    serve(peer=lambda connection: Peer(0, os.geteuid(), os.getegid(), (0, 0, 0)))
    assert find_daemon() is not None
    status, body = post("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=500000&block=true")
    assert status == 403 and "hostPID" in body.decode()


def test_a_flood_of_one_user_is_refused_and_others_are_served(node: Node, serve: Serve) -> None:
    node(FakeGpu())
    uids, seen = [os.geteuid()], []

    def peer(connection: socket.socket) -> Peer:
        seen.append(connection.fileno())
        return Peer(os.getpid(), uids[0], 0, guardian_main.this_process())

    served = serve(
        Rule(users=(ME, str(STRANGER))),
        requests_per_s=1.0,
        connections=3,
        peer=peer,
    )
    served._now_s = lambda: 0.0
    look = b"GET /time HTTP/1.1\r\nConnection: close\r\n\r\n"
    statuses = [ask(look)[0] for _ in range(6)]
    assert statuses[:2] == [200, 200] and 429 in statuses[2:]
    uids[0] = STRANGER
    assert ask(look)[0] == 200
    assert served._host is not None and wait_until(lambda: not served._host._open)  # type: ignore[union-attr]
    before, open_ones = len(seen), [socket.socket(socket.AF_UNIX) for _ in range(8)]
    try:
        for one in open_ones:
            one.connect(served._path)
        assert wait_until(lambda: len(seen) == before + 8)
        assert wait_until(lambda: len(served._host._open) == 3)  # type: ignore[union-attr]
        uids[0] = os.geteuid()
        assert ask(look)[0] == 429, "another user's connection is taken, and answered"
    finally:
        for one in open_ones:
            one.close()


def test_a_dead_daemon_is_one_warning_and_the_training_goes_on(node: Node, serve: Serve) -> None:
    fake, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    served = serve()
    with pytest.MonkeyPatch.context() as patch:
        _rights_for_the_daemon_alone(patch, fake)
        with capping(said, fractions=(1.0, 0.9, 0.8)) as cap:
            assert cap.apply(0.8) and not said
            served.close()
            assert fake.state(0).power_limit_w == ADMIN_W, "a daemon that is ended puts back what it has set"
            for _ in range(3):
                assert not cap.apply(0.9)
        assert len(said) == 1 and "does not answer" in said[0], said


def test_a_daemon_that_was_killed_comes_back_to_its_records(
    node: Node, serve: Serve, holder: Callable[[], "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    fake = node(FakeGpu(limit_w=ADMIN_W), FakeGpu(limit_w=ADMIN_W))
    state = str(tmp_path / "state")
    private_files.make_folder(state)
    dead = guardian_main.Record(fake.uuid(0), guardian_main.boot_id(), (guardian_main.this_process()[0], 2**22 + 1, 5))
    dead.announce(round(ADMIN_W * 1000), 400_000)
    living = guardian_main.Record(fake.uuid(1), guardian_main.boot_id(), guardian_main.this_process())
    living.announce(round(ADMIN_W * 1000), 400_000)
    for index, record in enumerate((dead, living)):
        guardian_main.write(guardian_main.record_path(state, fake.uuid(index)), record)
        fake.update(index, limit_w=400.0)
    served = serve()
    assert fake.state(0).power_limit_w == ADMIN_W, "its owner died with the daemon"
    assert fake.state(1).power_limit_w == 400.0, "its owner lives, and goes on with it"
    assert post("/gpu/set_power_limit?gpu_ids=1&power_limit_mw=500000&block=true")[0] == 200
    served.close()
    assert fake.state(1).power_limit_w == ADMIN_W and not guardian_main.records(state)


@pytest.mark.long
def test_a_killed_daemon_and_its_client_as_processes(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: Callable[[], "subprocess.Popen[str]"]
) -> None:
    fake = node(FakeGpu(limit_w=ADMIN_W))
    place, config = tmp_path / "d.sock", tmp_path / "daemon.yaml"
    monkeypatch.setenv("GREENTRAIN_DAEMON_SOCKET", str(place))
    config.write_text(f"allow:\n- users: ['{ME}']\n  power_w: [300, 600]\n  graphics_mhz: [210, 1410]\n"
                      "  memory_mhz: [800, 2000]\n")  # fmt: skip
    config.chmod(0o644)
    words = [sys.executable, "-m", "greentrain", "daemon", "-c", str(config), "--socket", str(place)]
    words += ["--state", str(tmp_path / "state")]

    running: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        child = subprocess.Popen(words, env=fake.env(), stdout=subprocess.PIPE, text=True)
        running.append(child)
        assert child.stdout is not None
        while "listens at" not in (line := child.stdout.readline()):
            assert line
        return child

    first = start()
    client = holder()
    second = subprocess.run(words, env=fake.env(), capture_output=True, text=True, check=False)
    assert second.returncode == 1 and "another daemon is at work" in second.stderr
    first.kill()
    first.communicate()
    client.kill()
    client.communicate()
    assert fake.state(0).power_limit_w == 400.0, "nobody is left who could put it back"
    again = start()
    try:
        assert fake.state(0).power_limit_w == ADMIN_W and fake.state(0).gpu_clocks_mhz == FREE_MHZ
    finally:
        again.send_signal(signal.SIGTERM)
        assert again.communicate(timeout=60)[0] is not None and again.returncode == 0
    assert not place.exists()


def test_zeus_sets_and_reads_through_it(node: Node, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    zeusd = pytest.importorskip("zeus.utils.zeusd")
    from zeus.device.gpu.nvidia import NVIDIAGPUs

    fake = node(FakeGpu(limit_w=ADMIN_W), FakeGpu())
    served = serve()
    monkeypatch.setenv("ZEUSD_SOCK_PATH", served._path)
    client = zeusd.ZeusdClient()
    assert client.gpu_ids == [0, 1] and client.can_read_gpu and client.can_control_gpu
    assert client.get_power_limit([0]) == {0: 650_000} and client.get_power_limit_constraints([0]) == {
        0: (200_000, 700_000)
    }
    assert client.get_gpu_energy([0, 1]).keys() == {0, 1} and client.get_gpu_power().power_mw.keys() == {0, 1}
    client._client.close()
    gpus = NVIDIAGPUs().gpus
    gpus[0].set_persistence_mode(True)
    gpus[0].set_power_management_limit(400_000)
    gpus[0].set_gpu_locked_clocks(210, 990)
    gpus[0].set_memory_locked_clocks(800, 1593)
    assert gpus[0].get_persistence_mode() and fake.state(0).power_limit_w == 400.0
    assert fake.state(0).gpu_clocks_mhz == (210, 990)
    with pytest.raises(Exception, match="outside 300 to 600"):
        gpus[1].set_power_management_limit(200_000)
    gpus[0].reset_gpu_locked_clocks()
    assert fake.state(0).gpu_clocks_mhz == FREE_MHZ
    gpus[0]._client._client.close()
    served.close()
    assert fake.state(0).power_limit_w == ADMIN_W and not fake.state(0).persistence


def test_a_reset_does_not_undo_an_administrators_lock(node: Node, serve: Serve) -> None:
    import pynvml

    fake = node(FakeGpu())
    pynvml.nvmlInit()
    pynvml.nvmlDeviceSetGpuLockedClocks(pynvml.nvmlDeviceGetHandleByIndex(0), 210, 780)
    served = serve()
    assert post("/gpu/reset_gpu_locked_clocks?gpu_ids=0&block=true")[0] == 200
    assert fake.state(0).gpu_clocks_mhz == (210, 780) and not guardian_main.records(served._state)
    pynvml.nvmlShutdown()


def _powercap(root: Path, uj: int = 5_000_000) -> Path:
    for name, label, of in (("intel-rapl:0", "package-0", root), ("intel-rapl:0:0", "dram", root / "intel-rapl:0")):
        zone = of / name
        zone.mkdir(parents=True)
        (zone / "name").write_text(label + "\n")
        (zone / "energy_uj").write_text(f"{uj}\n")
        (zone / "max_energy_range_uj").write_text("262143328850\n")
    return root


def test_rapl_is_read_through_it_and_a_dead_daemon_is_a_gap(
    node: Node, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node(FakeGpu())
    root = _powercap(tmp_path / "powercap")
    served = serve(powercap=root)
    read_text = Path.read_text

    def denied(path: Path, *args: Any, **more: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", denied)
    meter = RaplMeter(root)
    assert [sensor.provenance for sensor in meter.sensors] == [Provenance.MEASURED] * 2
    assert all("greentrain daemon" in sensor.note for sensor in meter.sensors)
    before = [sample.energy_j for sample in meter.read()]
    (root / "intel-rapl:0" / "energy_uj").write_text("12_000_000\n".replace("_", ""))
    monkeypatch.setattr("greentrain.power.daemon_client.FRESH_S", 0.0)
    after = [sample.energy_j for sample in meter.read()]
    assert None not in before and None not in after
    assert [round(b - a, 3) for a, b in zip(before, after, strict=True)] == [7.0, 0.0]  # type: ignore[operator]
    served.close()
    assert all(sample.energy_j is None and "does not answer" in sample.note for sample in meter.read())
    meter.close()


def test_what_a_list_says_is_checked_before_anything_is_served(tmp_path: Path) -> None:
    path = tmp_path / "daemon.yaml"
    for text, words in (
        ("allow: []\n", "nobody may do anything"),
        ("allow:\n- power_w: [1, 2]\n", "neither users nor groups"),
        ("allow:\n- users: [no-such-user-here]\n", "does not know"),
        ("allow:\n- users: [root]\n  power_w: [500, 300]\n", "lowest and the highest"),
        ("allow:\n- users: [root]\n  watts: [500, 300]\n", "unknown key"),
    ):
        path.write_text(text)
        path.chmod(0o644)
        with pytest.raises(ConfigError, match=words):
            load_daemon_config(path)
    path.write_text("allow:\n- users: [root]\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="chmod 644"):
        load_daemon_config(path)


def test_the_list_of_the_documents_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "actuation.md").read_text(encoding="utf-8")
    path = tmp_path / "daemon.yaml"
    path.write_text(
        page.partition("```yaml\n# /etc/greentrain/daemon.yaml")[2].partition("```")[0].replace("gpu-users", "0")
    )
    path.chmod(0o644)
    assert path.read_text().startswith(", root's")
    path.write_text("#" + path.read_text().replace("[0]", "['0']"))
    (rule,) = load_daemon_config(path).allow
    assert rule.groups == ("0",) and rule.power_w == (300.0, 700.0) and rule.profiles


def test_without_a_driver_it_says_so_and_a_second_daemon_is_refused(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_CONFIG", str(tmp_path / "none"))
    said: list[str] = []
    serve(say=said.append)
    assert len(said) == 1 and said[0].startswith("no GPU is served")
    with pytest.raises(GreenTrainError, match="another daemon"):
        serve()
    found = json.loads(ask(b"GET /discover HTTP/1.1\r\nConnection: close\r\n\r\n")[1])
    assert found["gpus"] == [] and found["enabled_api_groups"] == ["cpu-read", "gpu-read"]
    assert "answers at" in survey_daemon()
