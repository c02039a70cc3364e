"""The command that is supervised: which launcher it is, how wide it runs, and what a width is set with."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.utils.validation import bound

CHECKPOINT: Final = "{checkpoint}"
"""In a command: the newest whole checkpoint. Where there is none its word is left out, and a flag just before it."""
RANKS: Final = "{ranks}"
"""In a command: the width."""

_TORCHRUN_SWITCHES: Final = frozenset(
    {"--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank", "-h", "--help"}
)
"""Options of torchrun without a value, '_' as '-'; every other takes one (torch/distributed/run.py@2.13)."""
_ACCELERATE_SWITCHES: Final = frozenset({
    "-h", "--help", "--quiet", "-q", "--cpu", "--multi-gpu", "--tpu", "--downcast-bf16", "--use-deepspeed",
    "--use-fsdp", "--use-megatron-lm", "--use-parallelism-config", "--enable-cpu-affinity", "-m", "--module",
    "--no-python", "--tpu-cluster", "--no-tpu-cluster", "--tpu-use-sudo", "--same-network", "--dynamo-use-fullgraph",
    "--dynamo-use-dynamic", "--dynamo-use-regional-compilation", "--fp8-use-autocast-during-eval",
})  # fmt: skip
"""Options of ``accelerate launch`` without a value, '_' as '-' (accelerate/commands/launch.py@1.15)."""
_PYTHON_VALUES: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Options of python with a value in the next word (docs.python.org/3/using/cmdline.html, 2026-11-21)."""
_REMEDY: Final = {
    "torchrun": "install torch: pip install torch",
    "accelerate": "pip install 'greentrain-torch[accelerate]'",
    "lightning": "Lightning 2.6 has none any more; run the script with python or torchrun",
    "fabric": "pip install 'greentrain-torch[lightning]'",
    "deepspeed": "pip install 'greentrain-torch[deepspeed]'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, understood."""

    words: tuple[str, ...]
    """As it was typed, the program as it was found."""
    kind: str
    """``torchrun``, ``accelerate``, ``fabric``, ``deepspeed``, ``python`` or ``other``."""
    ranks: int | None = None
    """Width that it names; None: it names none."""
    ranks_word: str = ""
    """That width as it was typed, such as ``gpu``."""
    options_at: int = 1
    """Where the launcher's own options begin."""
    script_at: int | None = None
    """Where the script, or the module after -m, stands; None: unknown."""
    module: bool = False
    """Whether that is a module."""
    several_nodes: bool = False
    has_placeholder: bool = False
    """Whether it says itself where its width goes."""

    @property
    def python(self) -> str | None:
        """The interpreter that runs the script; None: not known."""
        if self.kind == "python" or (self.kind == "torchrun" and _is_python(self.words[0])):
            return self.words[0]
        if self.kind in ("torchrun", "accelerate"):
            return _shebang(self.words[0]) or sys.executable
        return None

    @property
    def interpreter(self) -> tuple[str, ...]:
        """That interpreter with its own options."""
        if self.kind == "python":
            return self.words[: self.options_at]
        if _is_python(self.words[0]):
            return self.words[: self.options_at - 2]  # without -m and its module
        return () if self.python is None else (self.python,)

    def for_agent(self, ranks: int, checkpoint: str | None) -> list[str]:
        """Return the launcher's options, the script and its arguments, for ``greentrain.control.launch.agent``."""
        if self.kind == "accelerate":
            return fill(self._with_ranks(ranks)[self.options_at :], ranks, checkpoint)
        return fill([*self.options, *self.words[self.script_at :]], ranks, checkpoint)

    @property
    def options(self) -> tuple[str, ...]:
        """The launcher's own options, without its width."""
        if self.kind not in _FLAGS or self.script_at is None:
            return ()
        options = self.words[self.options_at : self.script_at]
        return tuple(_without(options, _FLAGS[self.kind][0], _switches(self.kind)))

    @property
    def can_be_elastic(self) -> bool:
        """Whether it is a script of python that torch's agent can run in its own workers."""
        known = self.kind in ("python", "torchrun", "accelerate") and self.script_at is not None
        return (
            known
            and not self.several_nodes
            and not self.has_placeholder
            and not {"--no-python", "--no_python"} & set(self.options)
        )

    @property
    def can_change_width(self) -> bool:
        """Whether a width can be set."""
        return self.has_placeholder or (self.kind != "other" and not self.several_nodes)

    def of(self, ranks: int | None, checkpoint: str | None) -> list[str]:
        """Return the words of one attempt.

        Args:
            ranks: Number of ranks of the attempt; None: that of the command.
            checkpoint: Checkpoint that the attempt starts from; None: it starts from none.
        """
        words = list(self.words)
        if ranks is not None and not self.has_placeholder:
            words = self._with_ranks(ranks)
        return fill(words, ranks, checkpoint)

    def _with_ranks(self, ranks: int) -> list[str]:
        flag = _FLAGS.get(self.kind)
        if flag is None:
            return list(self.words)  # python alone: the agent of greentrain.control.launch.agent sets it
        end = len(self.words) if self.script_at is None else self.script_at
        dropped = flag[0]
        if self.kind == "accelerate" and ranks == 1:
            dropped = (*dropped, "--multi_gpu")  # which it refuses for one process (accelerate/commands/launch.py@1.15)
        head = _without(self.words[self.options_at : end], dropped, _switches(self.kind))
        return [*self.words[: self.options_at], flag[0][0], str(ranks), *head, *self.words[end:]]


_FLAGS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "torchrun": (("--nproc-per-node", "--nproc_per_node"), "WORLD_SIZE"),
    "accelerate": (("--num_processes", "--num-processes"), ""),
    "fabric": (("--devices",), ""),
    "deepspeed": (("--num_gpus", "--num-gpus"), ""),
}
"""What sets the width on one node: torchrun's and accelerate's launchers take '-' and '_' alike."""


def understand(words: Sequence[str], environ: Mapping[str, str] | None = None) -> Command:
    """Return what a command is.

    Raises:
        ConfigError: It is empty, its program is not installed, or it names a width that is none.
    """
    env = os.environ if environ is None else environ
    if not words or not words[0].strip():
        raise ConfigError("no command is given: name it after --, as in greentrain launch -- torchrun train.py")
    program = _find(words[0], env)
    words = (program, *words[1:])
    placeholder = any(RANKS in word for word in words)
    name = Path(program).name
    if name == "torchrun":
        found = _launcher(words, "torchrun", 1)
    elif name == "accelerate" and words[1:2] == ("launch",):
        found = _accelerate(words, 2, env)
    elif name == "accelerate-launch":
        found = _accelerate(words, 1, env)
    elif name in ("fabric", "lightning") and "run" in words[1:3]:
        at = words.index("run") + 1
        found = _launcher(words, "fabric", at + (words[at : at + 1] == ("model",)))
    elif name == "deepspeed":
        found = _launcher(words, "deepspeed", 1)
    elif _is_python(program):
        found = _python(words, env)
    else:
        found = Command(words=words, kind="other")
    _check_script(found)
    return replace(found, has_placeholder=placeholder)


def fill(words: Sequence[str], ranks: int | None, checkpoint: str | None) -> list[str]:
    """Return words with their places filled in."""
    out: list[str] = []
    for word in words:
        if RANKS in word and ranks is not None:
            word = word.replace(RANKS, str(ranks))
        if CHECKPOINT in word:
            if checkpoint is None:
                if word == CHECKPOINT and out and out[-1].startswith("-"):
                    out.pop()
                continue
            word = word.replace(CHECKPOINT, checkpoint)
        out.append(word)
    return out


def check_width(command: Command, min_ranks: int, max_ranks: int) -> None:
    """Check that a command can run at widths.

    Raises:
        ConfigError: It cannot; names value, bound and remedy.
    """
    bound("the smallest width (--width, or actuators.width.min)", min_ranks, 1, 1e6)
    bound("the largest width (--width, or actuators.width.max)", max_ranks, 1, 1e6)
    if min_ranks > max_ranks:
        raise ConfigError(
            f"the smallest width is {min_ranks}, above the largest, which is {max_ranks}: see --width, or"
            " actuators.width"
        )
    if command.has_placeholder:
        return
    if command.several_nodes and min_ranks == max_ranks == (command.ranks or 1):
        return
    if command.several_nodes:
        raise ConfigError(
            "the command runs on several nodes, whose width greentrain launch does not change: drop --width and"
            " actuators.width, or use Ray (greentrain.callbacks.ray)"
        )
    if command.ranks is not None and max_ranks > command.ranks:
        raise ConfigError(
            f"the largest width is {max_ranks}, above the launcher's, which is {command.ranks}"
            f" ({command.ranks_word}): raise that, or lower --width or actuators.width.max"
        )
    if max_ranks > 1 and not command.can_change_width:
        raise ConfigError(
            f"a width of {min_ranks} to {max_ranks} is asked for, but nothing is known about how"
            f" {Path(command.words[0]).name!r} sets one: put {RANKS} where its number of processes goes, as in"
            " mpirun -n {ranks} python train.py, or use torchrun, accelerate launch or python"
        )


def _launcher(words: tuple[str, ...], kind: str, options_at: int) -> Command:
    switches = _switches(kind)
    flags = _FLAGS[kind][0]
    named, nodes, module, i = "", "", False, options_at
    while i < len(words) and words[i].startswith("-") and words[i] != "-":
        flag, is_joined, value = words[i].partition("=")
        switch = _plain(flag) in switches
        if not is_joined and not switch:
            value = words[i + 1] if i + 1 < len(words) else ""
        module |= flag in ("-m", "--module")
        if _plain(flag) in map(_plain, flags):
            named = value
        elif _plain(flag) in ("--nnodes", "--num-machines", "--num-nodes"):
            nodes = value
        i += 1 if switch or is_joined else 2
    return Command(
        words=words,
        kind=kind,
        ranks=_count(named, flags[0]),
        ranks_word=f"{flags[0]} {named}" if named else "",
        options_at=options_at,
        script_at=i if i < len(words) else None,
        module=module,
        several_nodes=bool(nodes) and nodes.split(":")[-1] != "1",
    )


def _accelerate(words: tuple[str, ...], options_at: int, environ: Mapping[str, str]) -> Command:
    """Return what ``accelerate launch`` is told, by its options or else by its configuration file."""
    found = _launcher(words, "accelerate", options_at)
    options = words[options_at : found.script_at]
    named = next((i for i, word in enumerate(options) if _plain(word).startswith("--config-file")), None)
    if named is not None:
        _, joined, value = options[named].partition("=")
        file = Path(value if joined else "".join(options[named + 1 : named + 2]))
    else:
        # accelerate/commands/config/config_args.py@1.15
        home = environ.get("HF_HOME") or os.path.join(
            environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface"
        )
        file = Path(home) / "accelerate" / "default_config.yaml"
        if not file.is_file():
            return found
    data = _config_file(file)
    if found.ranks is None and data.get("num_processes") is not None:
        ranks = str(data["num_processes"])
        found = replace(found, ranks=_count(ranks, f"num_processes of {file}"), ranks_word=f"num_processes of {file}")
    return replace(found, several_nodes=found.several_nodes or str(data.get("num_machines", 1)) != "1")


def _config_file(file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read accelerate's configuration {file}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"accelerate's configuration {file} is not valid YAML: {error}") from error
    return data if isinstance(data, Mapping) else {}


def _python(words: tuple[str, ...], environ: Mapping[str, str]) -> Command:
    i = 1
    while i < len(words) and words[i].startswith("-") and len(words[i]) > 1:
        if words[i] == "-m":
            module = words[i + 1] if i + 1 < len(words) else ""
            if module in ("torch.distributed.run", "torch.distributed.launch"):
                return _launcher(words, "torchrun", i + 2)
            if module == "accelerate.commands.launch":
                return _accelerate(words, i + 2, environ)
            return Command(words=words, kind="python", script_at=i + 1, module=True, options_at=i)
        if words[i].startswith("-c"):
            return Command(words=words, kind="other")
        i += 2 if words[i] in _PYTHON_VALUES else 1
    if i >= len(words) or words[i] == "-":
        return Command(words=words, kind="other")
    return Command(words=words, kind="python", script_at=i, options_at=i)


def _check_script(command: Command) -> None:
    if command.script_at is None or command.module or command.kind not in ("python", "torchrun", "accelerate"):
        return
    script = command.words[command.script_at]
    if "{" not in script and not Path(script).exists():
        raise ConfigError(f"there is no script {script} in {Path.cwd()}: check its name")


def _count(named: str, flag: str) -> int | None:
    """Return a width that was typed; None where none was, or only the launcher can tell."""
    if not named or RANKS in named or named in ("auto", "xpu"):
        return None
    if named == "gpu":
        return _gpus()
    if named == "cpu":
        return os.cpu_count()
    if not re.fullmatch(r"[0-9]+", named) or int(named) < 1:
        raise ConfigError(f"{flag} is {named!r}; it must be a whole number from 1 on")
    return int(named)


def _gpus() -> int | None:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip()]) or None
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount()) or None
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return None  # no driver: the launcher will say so


def _find(program: str, environ: Mapping[str, str]) -> str:
    """Return the path of a program: on PATH, or beside this interpreter where its environment is not active."""
    found = shutil.which(program, path=environ.get("PATH")) or (
        shutil.which(program, path=str(Path(sys.executable).parent)) if os.sep not in program else None
    )
    if found is not None:
        return found
    name = Path(program).name
    if os.sep in program and Path(program).exists():
        raise ConfigError(f"{program} is no program that may be executed: name its interpreter, or chmod +x it")
    if program.startswith("-"):
        raise ConfigError(f"unknown option {program!r} of greentrain launch: see --help; the command goes after --")
    remedy = _REMEDY.get(name, "check its spelling and PATH")
    raise ConfigError(f"the launcher {program!r} is not installed here: {remedy}")


def _without(words: Sequence[str], flags: Sequence[str], switches: frozenset[str]) -> list[str]:
    """Return options without some of them."""
    out: list[str] = []
    i = 0
    while i < len(words):
        flag, joined, _ = words[i].partition("=")
        size = 1 if joined or _plain(flag) in switches else 2
        if _plain(flag) not in map(_plain, flags):
            out += words[i : i + size]
        i += size
    return out


def _switches(kind: str) -> frozenset[str]:
    return {"torchrun": _TORCHRUN_SWITCHES, "accelerate": _ACCELERATE_SWITCHES}.get(kind, frozenset({"-h", "--help"}))


def _plain(flag: str) -> str:
    return flag.replace("_", "-")


def _is_python(program: str) -> bool:
    return re.fullmatch(r"(python|pypy)[0-9.]*", Path(program).name) is not None


def _shebang(program: str) -> str | None:
    try:
        with open(program, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    word = first[2:].split()[:1] if first.startswith(b"#!") else []
    path = word[0].decode(errors="replace") if word else ""
    return path if _is_python(path) and Path(path).exists() else None
