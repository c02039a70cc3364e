"""What a command is, how wide it runs, and what is wrong with it."""

import sys
from pathlib import Path

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
