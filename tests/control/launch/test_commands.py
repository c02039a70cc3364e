"""What a command is, how wide it runs, and what is wrong with it."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from greentrain.control.launch.commands import Command, check_width, fill, understand
from greentrain.errors import ConfigError

PY = sys.executable


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Launchers of all kinds on PATH, which nobody runs; no accelerate configuration but a test's own."""
    for name in ("torchrun", "accelerate", "fabric", "lightning", "deepspeed", "mpirun", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for name in ("t.py", "t.sh"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


def words(found: Command, ranks: int | None) -> str:
    first, *others = found.of(ranks, None)
    return " ".join([Path(first).name, *others])


@pytest.mark.parametrize(
    ("typed", "kind", "ranks", "at_two"),
    [
        ("torchrun t.py -x 1", "torchrun", None, "torchrun --nproc-per-node 2 t.py -x 1"),
        ("torchrun --nproc_per_node=4 t.py", "torchrun", 4, "torchrun --nproc-per-node 2 t.py"),
        (
            "torchrun --standalone --nproc-per-node 4 --role a -m pkg.t --nproc-per-node 9",
            "torchrun",
            4,
            "torchrun --nproc-per-node 2 --standalone --role a -m pkg.t --nproc-per-node 9",
        ),
        (
            "python3 -u -m torch.distributed.run --nproc-per-node 3 t.py",
            "torchrun",
            3,
            "python3 -u -m torch.distributed.run --nproc-per-node 2 t.py",
        ),
        (
            "accelerate launch --multi_gpu --num_processes 8 --mixed_precision bf16 t.py --num_processes 1",
            "accelerate",
            8,
            "accelerate launch --num_processes 2 --multi_gpu --mixed_precision bf16 t.py --num_processes 1",
        ),
        ("fabric run --devices 4 t.py", "fabric", 4, "fabric run --devices 2 t.py"),
        (
            "torchrun --nproc-per-node 4 t.py x --nproc-per-node 9",  # the script's own
            "torchrun",
            4,
            "torchrun --nproc-per-node 2 t.py x --nproc-per-node 9",
        ),
        ("lightning run model --devices=4 t.py", "fabric", 4, "lightning run model --devices 2 t.py"),
        ("deepspeed --num_gpus 4 t.py", "deepspeed", 4, "deepspeed --num_gpus 2 t.py"),
        ("python3 -u t.py --lr 1", "python", None, "python3 -u t.py --lr 1"),
        ("python3 -W error -m pkg.t a", "python", None, "python3 -W error -m pkg.t a"),
        ("python3 -c pass", "other", None, "python3 -c pass"),
        ("mpirun -n {ranks} python3 t.py", "other", None, "mpirun -n 2 python3 t.py"),
    ],
)
def test_launchers_are_known_by_their_command(
    bin_: Path, typed: str, kind: str, ranks: int | None, at_two: str
) -> None:
    found = understand(typed.split())
    assert (found.kind, found.ranks) == (kind, ranks)
    assert words(found, 2) == at_two
    if "{ranks}" not in typed:
        assert words(found, None) == typed


def test_options_of_torchrun_are_kept_for_its_agent(bin_: Path) -> None:
    found = understand(
        ["torchrun", "--role", "a", "--nproc-per-node", "4", "--log-dir=/x", "t.py", "--nproc-per-node", "9"]
    )
    assert found.options == ("--role", "a", "--log-dir=/x") and found.can_be_elastic
    assert not understand(["torchrun", "--no-python", "t.sh"]).can_be_elastic
    assert understand(["python3", "-u", "t.py"]).interpreter == (str(bin_ / "python3"), "-u")
    found = understand(["python3", "-X", "dev", "-m", "torch.distributed.run", "t.py"])
    assert found.interpreter == (str(bin_ / "python3"), "-X", "dev")


def test_the_width_of_accelerate_may_be_in_its_configuration(bin_: Path) -> None:
    default = bin_ / "hf" / "accelerate" / "default_config.yaml"
    default.parent.mkdir(parents=True)
    default.write_text("num_processes: 4\nnum_machines: 1\n")
    own = bin_ / "own.yaml"
    own.write_text("num_processes: 8\nnum_machines: 2\n")
    assert understand(["accelerate", "launch", "t.py"]).ranks == 4
    found = understand(f"accelerate launch --config_file {own} t.py".split())
    assert found.ranks == 8 and found.several_nodes and not found.can_change_width
    assert understand(f"accelerate launch --config_file {own} --num_processes 2 t.py".split()).ranks == 2
    with pytest.raises(ConfigError, match=r"cannot read accelerate's configuration .*gone\.yaml"):
        understand(["accelerate", "launch", "--config_file", "gone.yaml", "t.py"])


def test_several_nodes_keep_their_width(bin_: Path) -> None:
    found = understand(["torchrun", "--nnodes", "1:4", "--nproc-per-node", "2", "--rdzv-endpoint", "h:1", "t.py"])
    assert found.several_nodes and not found.can_be_elastic
    check_width(found, 2, 2)
    with pytest.raises(ConfigError, match="several nodes"):
        check_width(found, 1, 2)


@pytest.mark.parametrize(
    ("typed", "low", "high", "message"),
    [
        ("torchrun --nproc-per-node 2 t.py", 0, 2, "smallest width .* is 0"),
        ("torchrun --nproc-per-node 2 t.py", 2, 1, "above the largest"),
        ("torchrun --nproc-per-node 2 t.py", 1, 4, r"largest width is 4, above the launcher's, which is 2"),
        ("mpirun python3 t.py", 1, 2, r"\{ranks\}"),
    ],
)
def test_widths_that_cannot_be(bin_: Path, typed: str, low: int, high: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_width(understand(typed.split()), low, high)


def test_a_place_for_the_width_makes_any_command_elastic(bin_: Path) -> None:
    check_width(understand(["mpirun", "-n", "{ranks}", "t"]), 1, 4)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_a_launcher_with_a_wrong_width(bin_: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=f"--nproc-per-node is '{value}'"):
        understand(["torchrun", f"--nproc-per-node={value}", "t.py"])


def test_gpus_are_counted_by_what_is_visible(bin_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,5")
    assert understand(["torchrun", "--nproc-per-node", "gpu", "t.py"]).ranks == 3
    assert understand(["torchrun", "--nproc-per-node", "auto", "t.py"]).ranks is None


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("torchrun", "pip install torch"), ("accelerate", r"greentrain-torch\[accelerate\]"), ("mytool", "PATH")],
)
def test_a_launcher_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, remedy: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=f"'{name}' is not installed here: .*{remedy}"):
        understand([name, "launch", "t.py"])


@pytest.mark.parametrize("typed", ["torchrun gone.py", "python3 gone.py", "accelerate launch gone.py"])
def test_a_script_that_is_missing(bin_: Path, typed: str) -> None:
    with pytest.raises(ConfigError, match=r"no script gone\.py"):
        understand(typed.split())
    assert understand(["python3", "-m", "gone"]).module


def test_one_process_is_no_multi_gpu_to_accelerate(bin_: Path) -> None:
    found = understand(["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "t.py"])
    assert words(found, 1) == "accelerate launch --num_processes 1 t.py"
    assert found.for_agent(2, None) == ["--num_processes", "2", "--multi_gpu", "t.py"]


def test_nothing_and_what_may_not_be_executed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no command"):
        understand([])
    (tmp_path / "train.sh").write_text("exit 0")
    with pytest.raises(ConfigError, match="chmod"):
        understand([str(tmp_path / "train.sh")])


@pytest.mark.parametrize(
    ("typed", "with_", "without"),
    [
        ("a --resume {checkpoint} b", "a --resume c b", "a b"),
        ("a --resume={checkpoint} b", "a --resume=c b", "a b"),
        ("a ckpt_path={checkpoint} b", "a ckpt_path=c b", "a b"),
        ("a x {checkpoint}", "a x c", "a x"),
    ],
)
def test_the_place_of_a_checkpoint(typed: str, with_: str, without: str) -> None:
    assert fill(typed.split(), 1, "c") == with_.split()
    assert fill(typed.split(), 1, None) == without.split()


# -- which interpreter, script and options -----------------------------------------------------------------------


def test_which_interpreter_runs_a_script(bin_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent imports torch with it; a launcher says in its first line which one it is."""
    python = str(bin_ / "python3")
    assert understand(["python3", "t.py"]).python == python
    assert understand(["python3", "-m", "torch.distributed.run", "t.py"]).python == python
    torchrun = understand(["torchrun", "t.py"])
    assert (torchrun.python, torchrun.interpreter) == (PY, (PY,)), (
        "its first line names a shell: the one of this launcher"
    )
    for line, found in (
        (f"#!{python} -E\n", python),
        (f"#!{python}9\n", PY),  # which is not there
        ("#!\n", PY),
        (f"##{python}\n", PY),
        ("\n", PY),
    ):
        (bin_ / "torchrun").write_text(line)
        assert understand(["torchrun", "t.py"]).python == found
        (bin_ / "accelerate").write_text(line)
        assert understand(["accelerate", "launch", "t.py"]).interpreter == (found,)
    for typed in ("fabric run t.py", "deepspeed t.py", "mpirun t.py"):
        other = understand(typed.split())
        assert other.python is None and other.interpreter == () and not other.can_be_elastic
    gone = Command(words=(str(bin_ / "gone"),), kind="torchrun")
    assert gone.python == PY, "what cannot be read says nothing"


@pytest.mark.parametrize(
    ("typed", "script_at", "module", "options"),
    [
        ("torchrun t.py -a", 1, False, ()),
        ("torchrun --standalone t.py", 2, False, ("--standalone",)),
        ("torchrun --role a t.py", 3, False, ("--role", "a")),
        ("torchrun --role=a t.py", 2, False, ("--role=a",)),
        ("torchrun --nnodes 1 -m pkg.t", 4, True, ("--nnodes", "1", "-m")),
        ("torchrun --module pkg.t", 2, True, ("--module",)),
        ("torchrun --role", None, False, ()),
        ("torchrun", None, False, ()),
        ("accelerate launch --cpu --num_processes=2 t.py", 4, False, ("--cpu",)),
        (
            "accelerate launch --use_fsdp --mixed-precision bf16 t.py",
            5,
            False,
            ("--use_fsdp", "--mixed-precision", "bf16"),
        ),
        ("accelerate-launch --quiet t.py", 2, False, ("--quiet",)),
        ("python3 -m accelerate.commands.launch -q t.py", 4, False, ("-q",)),
        ("python3 -m torch.distributed.launch --role a t.py", 5, False, ("--role", "a")),
        ("python3 -u -W error -X dev t.py", 6, False, ()),
        ("python3 --check-hash-based-pycs always t.py", 3, False, ()),
        ("python3 -B -m pkg.t -m x", 3, True, ()),
        ("fabric run --devices 2 --strategy ddp t.py", 6, False, ("--strategy", "ddp")),
        ("lightning --verbose run t.py", 3, False, ()),
        ("deepspeed --num_gpus 2 --hostfile h t.py", 5, False, ("--hostfile", "h")),
    ],
)
def test_where_the_script_stands(
    bin_: Path, typed: str, script_at: int | None, module: bool, options: tuple[str, ...]
) -> None:
    found = understand(typed.split())
    assert (found.script_at, found.module, found.options) == (script_at, module, options)
    assert not found.several_nodes and not found.has_placeholder


@pytest.mark.parametrize(
    "typed",
    [
        "python3",
        "python3 -u",
        "python3 -",
        "python3 -cpass",
        "python3 -u -c pass",
        "fabric test t.py",
        "fabric test t.py run",
        "accelerate config",
    ],
)
def test_what_runs_no_script_is_left_alone(bin_: Path, typed: str) -> None:
    found = understand(typed.split())
    assert (found.kind, found.script_at) == ("other", None) and not found.can_be_elastic and not found.can_change_width
    assert words(found, 2) == typed, "nothing is known of how it is made wider"


@pytest.mark.parametrize(
    ("typed", "elastic"),
    [
        ("python3 t.py", True),
        ("torchrun t.py", True),
        ("torchrun", False),
        ("torchrun --no_python t.py", False),
        ("accelerate launch t.py", True),
        ("accelerate launch --no_python t.py", False),
        ("torchrun --nnodes=2 t.py", False),
        ("torchrun --nnodes=1 t.py", True),
        ("torchrun t.py --n {ranks}", False),
        ("deepspeed t.py", False),
    ],
)
def test_what_the_agent_can_run(bin_: Path, typed: str, elastic: bool) -> None:
    assert understand(typed.split()).can_be_elastic is elastic


@pytest.mark.parametrize(
    ("nodes", "several"),
    [("1", False), ("1:1", False), ("2", True), ("1:4", True), ("$NODES", True)],
)
def test_nodes_of_a_command(bin_: Path, nodes: str, several: bool) -> None:
    for option in ("torchrun --nnodes", "accelerate launch --num_machines", "fabric run --num-nodes"):
        found = understand([*option.split(), nodes, "t.py"])
        assert found.several_nodes is several and found.can_change_width is not several


def test_an_attempt_of_the_agent_has_options_script_and_checkpoint(bin_: Path) -> None:
    found = understand(["torchrun", "--nproc-per-node", "4", "--role", "a", "t.py", "--at", "{checkpoint}", "--x"])
    assert found.for_agent(2, "/c") == ["--role", "a", "t.py", "--at", "/c", "--x"]
    assert found.for_agent(2, None) == ["--role", "a", "t.py", "--x"]
    assert found.of(2, "/c")[1:] == ["--nproc-per-node", "2", "--role", "a", "t.py", "--at", "/c", "--x"]
    assert found.of(None, None)[1:] == ["--nproc-per-node", "4", "--role", "a", "t.py", "--x"]
    alone = understand(["accelerate", "launch", "--multi-gpu", "--num-processes", "2", "t.py"])
    assert alone.for_agent(1, None) == ["--num_processes", "1", "t.py"]
    assert alone.of(2, None)[2:] == ["--num_processes", "2", "--multi-gpu", "t.py"]


def test_the_place_of_a_width_that_nobody_names_stays(bin_: Path) -> None:
    assert fill(["-n", "{ranks}"], None, None) == ["-n", "{ranks}"]
    assert fill(["{ranks}:{ranks}"], 3, None) == ["3:3"]
    assert fill(["x", "{checkpoint}"], 1, None) == ["x"], "no flag stands before it"
    assert fill(["{checkpoint}"], 1, None) == [] and fill(["--a", "b={checkpoint}"], 1, None) == ["--a"]


# -- how wide ------------------------------------------------------------------------------------------------------


def test_widths_that_are_allowed(bin_: Path) -> None:
    four = understand(["torchrun", "--nproc-per-node", "4", "t.py"])
    check_width(four, 1, 4)
    check_width(four, 4, 4)
    check_width(understand(["torchrun", "t.py"]), 1, 1_000_000)
    check_width(understand(["python3", "t.py"]), 1, 8)
    check_width(understand(["mpirun", "python3", "t.py"]), 1, 1)
    nodes = understand(["torchrun", "--nnodes", "2", "t.py"])
    check_width(nodes, 1, 1)  # one process a node, as torchrun does by itself
    for low, high in ((2, 2), (1, 2)):
        with pytest.raises(ConfigError, match="several nodes"):
            check_width(nodes, low, high)
    for low, high, which in ((0, 1, "smallest"), (1, 1_000_001, "largest"), (1_000_001, 1_000_001, "smallest")):
        with pytest.raises(ConfigError, match=f"the {which} width"):
            check_width(four, low, high)
    with pytest.raises(ConfigError, match=r"which is 4 \(--nproc-per-node 4\)"):
        check_width(four, 1, 5)
    with pytest.raises(ConfigError, match=r"a width of 2 to 2 is asked for.*'mpirun'"):
        check_width(understand(["mpirun", "python3", "t.py"]), 2, 2)


def test_a_width_in_words(bin_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks(width: str) -> tuple[int | None, str]:
        found = understand(["torchrun", "--nproc-per-node", width, "t.py"])
        return found.ranks, found.ranks_word

    assert ranks("cpu") == (os.cpu_count(), "--nproc-per-node cpu") and ranks("xpu")[0] is None
    assert ranks("{ranks}")[0] is None and understand(["torchrun", "t.py"]).ranks_word == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " , ")
    assert ranks("gpu")[0] is None, "none is visible: torchrun will say so"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    told: list[str] = []
    nvml: Any = ModuleType("pynvml")
    nvml.nvmlInit = lambda: told.append("init")
    nvml.nvmlShutdown = lambda: told.append("shutdown")
    nvml.nvmlDeviceGetCount = lambda: 6
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert ranks("gpu")[0] == 6 and told == ["init", "shutdown"]
    nvml.nvmlDeviceGetCount = lambda: 0
    assert ranks("gpu")[0] is None

    def missing() -> None:
        raise RuntimeError("Driver Not Loaded")

    nvml.nvmlDeviceGetCount = missing
    assert ranks("gpu")[0] is None and told == ["init", "shutdown"] * 3, "closed, whatever it said"
    nvml.nvmlInit = missing
    assert ranks("gpu")[0] is None and len(told) == 6


def test_the_configuration_of_accelerate_is_found_where_it_looks(bin_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def understood(**environ: str) -> Command:
        return understand(["accelerate", "launch", "t.py"], {"PATH": str(bin_), **environ})

    def write(folder: Path, text: str) -> None:
        (folder / "accelerate").mkdir(parents=True, exist_ok=True)
        (folder / "accelerate" / "default_config.yaml").write_text(text)

    write(bin_ / "xdg" / "huggingface", "num_processes: 3\n")
    write(bin_ / ".cache" / "huggingface", "num_processes: 5\n")
    write(bin_ / "hf", "num_processes: 7\nnum_machines: 2\n")
    monkeypatch.setattr(Path, "home", lambda: bin_)
    assert understood().ranks == 5
    assert understood(XDG_CACHE_HOME=str(bin_ / "xdg")).ranks == 3
    found = understood(XDG_CACHE_HOME=str(bin_ / "xdg"), HF_HOME=str(bin_ / "hf"))
    assert found.ranks == 7 and found.several_nodes
    assert found.ranks_word == f"num_processes of {bin_}/hf/accelerate/default_config.yaml"
    assert understood(HF_HOME=str(bin_ / "none")).ranks is None


@pytest.mark.parametrize(
    ("text", "ranks", "several"),
    [
        ("", None, False),
        ("- 1\n", None, False),
        ("num_machines: '1'\n", None, False),
        ("num_processes: '2'\n", 2, False),
        ("num_machines: 3\n", None, True),
    ],
)
def test_a_configuration_of_accelerate(bin_: Path, text: str, ranks: int | None, several: bool) -> None:
    (bin_ / "own.yaml").write_text(text)
    for typed in ("--config_file=own.yaml", "--config-file own.yaml"):
        found = understand(["accelerate", "launch", *typed.split(), "t.py"])
        assert (found.ranks, found.several_nodes) == (ranks, several)
    again = understand(["accelerate", "launch", "--num_machines", "2", "--config_file", "own.yaml", "t.py"])
    assert again.several_nodes, "what is typed counts as well"


def test_a_configuration_of_accelerate_that_is_wrong_is_named(bin_: Path) -> None:
    (bin_ / "own.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"accelerate's configuration own\.yaml is not valid YAML"):
        understand(["accelerate", "launch", "--config_file", "own.yaml", "t.py"])
    (bin_ / "own.yaml").write_text("num_processes: two")
    with pytest.raises(ConfigError, match=r"num_processes of own\.yaml is 'two'; it must be a whole number from 1 on"):
        understand(["accelerate", "launch", "--config_file", "own.yaml", "t.py"])
    assert understand(["accelerate", "launch", "--config_file", "own.yaml", "--num_processes", "1", "t.py"]).ranks == 1


# -- what is there ---------------------------------------------------------------------------------------------------


def test_a_launcher_beside_this_interpreter_is_found_where_its_environment_is_not_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "env"
    place.mkdir()
    for name in ("python3", "torchrun"):
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(place / "python3"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    elsewhere = {"PATH": str(tmp_path)}
    assert understand(["torchrun", "t.py"], elsewhere).words[0] == str(place / "torchrun")
    assert understand(["env/torchrun", "t.py"], elsewhere).words[0] == "env/torchrun"
    with pytest.raises(ConfigError, match=r"'\./torchrun' is not installed here"):
        understand(["./torchrun", "t.py"], elsewhere)


def test_what_is_no_command_is_said(bin_: Path) -> None:
    for typed in ([""], ["  "]):
        with pytest.raises(ConfigError, match="no command is given"):
            understand(typed)
    with pytest.raises(ConfigError, match="unknown option '--fast' of greentrain launch"):
        understand(["--fast", "t.py"])
    with pytest.raises(ConfigError, match=r"no script gone\.py in .*: check its name"):
        understand(["torchrun", "gone.py"])
    assert understand(["torchrun", "{checkpoint}.py"]).script_at == 1, "its name is not known yet"
    assert understand(["torchrun", "-m", "gone"]).module and understand(["deepspeed", "gone.py"]).kind == "deepspeed"


def test_pypy_is_a_python_and_a_name_that_begins_like_one_is_none(bin_: Path) -> None:
    for name, kind in (("pypy3.11", "python"), ("python3.12", "python"), ("pythonic", "other")):
        (bin_ / name).write_text("#!/bin/sh\n")
        (bin_ / name).chmod(0o755)
        assert understand([name, "t.py"]).kind == kind
