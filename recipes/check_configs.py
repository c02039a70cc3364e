"""Check every configuration key of the verl, OpenRLHF and ROLL recipes against a checkout of the framework.

    python recipes/check_configs.py verl=../verl openrlhf=../OpenRLHF roll=../ROLL [--record]
    python recipes/check_configs.py models                 # can each recipe's own model be compiled as a reference?

verl's keys are those of its generated configuration, OpenRLHF's those of its argument parser, ROLL's those of its
dataclasses. That matters most for ROLL, which ignores a key it does not know. Nothing of a framework is imported, and
it takes a second on any machine.
``models`` compiles, and computes, a tiny twin of each recipe's model: of the same type, with random weights.
``--record`` writes what was found to ``recipes/checked_keys.json``, to which a test holds the recipes where there is no
checkout.
"""

import ast
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

RECIPES = Path(__file__).resolve().parent
RECORD = RECIPES / "checked_keys.json"
_OVERRIDE = re.compile(r"^\s+(\+?[a-z_][\w]*(?:\.\w+)*)=", re.MULTILINE)
_FLAG = re.compile(r"^\s+--([a-z_][\w.]*)", re.MULTILINE)


_MODEL = re.compile(r"^(?:MODEL=\$\{MODEL:-|(?:reward_)?pretrain: )([\w.-]+/[\w.-]+)", re.MULTILINE)
_TINY: Mapping[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TWINS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen3-4B": {
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "Qwen/Qwen2.5-7B": {
        "model_type": "qwen2",
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "hidden_size": 56,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "OpenRLHF/Llama-3-8b-sft-mixture": {
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    },
}
"""What of a model's config.json decides which operators it has (the ratio of its heads, what is tied, how its positions
turn), at a size that compiles in a second; no hub is asked. A new model of a recipe needs its line."""


def default_models(framework: str) -> set[str]:
    """Return the models that a framework's recipes name as their own."""
    files = (file for file in (RECIPES / framework).iterdir() if file.suffix in (".sh", ".yaml"))
    return {name for file in files for name in _MODEL.findall(file.read_text(encoding="utf-8"))}


def compiled_twin(model: str) -> Any:
    """Compile a random twin of a model as the reference that ``greentrain rlhf serve`` runs, and return the artifact.

    Raises:
        KeyError: The model has no line in ``TWINS``.
        UnsupportedModelError: It cannot be compiled.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from greentrain.fpga_backend.compiler import compile as compile_model

    settings = {**_TINY, **TWINS[model]}
    torch.manual_seed(0)
    family: Any = AutoModelForCausalLM
    twin = family.from_config(AutoConfig.for_model(**settings))
    return compile_model(twin, max_tokens=16, head="logprob", activation_bits=16)


def check_models() -> int:
    """Compile every recipe's model and return how many cannot be; each is named with the reason."""
    from greentrain.fpga_backend.batch import Batch
    from greentrain.fpga_backend.emulator.engine import Engine

    wrong = 0
    for model in sorted(set().union(*map(default_models, UNKNOWN))):
        try:
            artifact = compiled_twin(model)
            found = Engine(artifact).run(Batch.of([[3, 4, 5, 6], [7, 8]])).logprobs or ()
            kinds = sorted({type(op).__name__ for op in artifact.program.ops})
            print(f"{model}: {len(artifact.program.ops)} operators ({', '.join(kinds)}), {len(found)} answers")
        except (KeyError, ValueError, RuntimeError) as error:
            wrong += 1
            print(f"{model}: {error}" if model in TWINS else f"{model}: has no tiny twin in recipes/check_configs.py")
    return wrong


def recipe_keys(framework: str) -> dict[str, list[str]]:
    """Return the keys of each recipe of a framework, by file name."""
    found: dict[str, list[str]] = {}
    for file in sorted((RECIPES / framework).iterdir()):
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".sh":
            found[file.name] = sorted(set((_OVERRIDE if framework == "verl" else _FLAG).findall(text)))
        elif file.suffix == ".yaml" and framework == "roll":
            found[file.name] = sorted(set(_flat(yaml.safe_load(text))))
    return found


def unknown_verl(checkout: Path, keys: Sequence[str]) -> list[str]:
    """Return the keys that verl does not know, and those marked with ``+`` that it does."""
    file = checkout / "verl" / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    known = set(_flat(yaml.safe_load(file.read_text(encoding="utf-8")), inner=True))
    return [key for key in keys if (key.lstrip("+") in known) == key.startswith("+")]


def unknown_openrlhf(checkout: Path, keys: Sequence[str]) -> list[str]:
    """Return the flags that OpenRLHF's trainer does not take."""
    file = checkout / "openrlhf" / "cli" / "train_ppo_ray.py"
    known = set(_flags(ast.parse(file.read_text(encoding="utf-8")), {}))
    return [key for key in keys if key not in known]


def unknown_roll(checkout: Path, keys: Sequence[str]) -> list[str]:
    """Return the keys that no dataclass of ROLL has; it would ignore them."""
    classes: dict[str, _Dataclass] = {}
    for file in itertools.chain(
        (checkout / "roll" / "configs").glob("*.py"), [checkout / "roll" / "pipeline" / "rlvr" / "rlvr_config.py"]
    ):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = _Dataclass(
                    [ast.unparse(base) for base in node.bases],
                    {
                        item.target.id: ast.unparse(item.annotation)
                        for item in node.body
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                    },
                )
    return [key for key in keys if not key.startswith("hydra.") and not _has(classes, "RLVRConfig", key.split("."))]


@dataclass(frozen=True, slots=True)
class _Dataclass:
    bases: list[str]
    fields: dict[str, str] = field(default_factory=dict)


def _has(classes: Mapping[str, _Dataclass], name: str, path: Sequence[str]) -> bool:
    """Return True if a path of keys leads to a field, or into a mapping of anything."""
    annotation = _annotation(classes, name, path[0])
    if annotation is None:
        return False
    inner = next((word for word in re.findall(r"\w+", annotation) if word in classes), None)
    rest = path[2:] if re.search(r"\b[Dd]ict\[", annotation) and inner else path[1:]
    if not rest:
        return True
    return bool(re.search(r"\b[Dd]ict\b", annotation)) if inner is None else _has(classes, inner, rest)


def _annotation(classes: Mapping[str, _Dataclass], name: str, key: str) -> str | None:
    for one in (name, *classes[name].bases):
        if one in classes and key in classes[one].fields:
            return classes[one].fields[key]
        if one != name and one in classes and (found := _annotation(classes, one, key)):
            return found
    return None


def _flat(node: Any, prefix: str = "", *, inner: bool = False) -> Iterator[str]:
    """Yield the dotted keys of leaves; with ``inner`` those of mappings too."""
    if not isinstance(node, dict) or not node:
        yield prefix
        return
    if inner and prefix:
        yield prefix
    for key, value in node.items():
        yield from _flat(value, f"{prefix}.{key}" if prefix else str(key), inner=inner)


def _flags(node: ast.AST, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the flags of ``add_argument`` calls, also of those in a loop over names."""
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple):
        for value in node.iter.elts:
            if isinstance(value, ast.Constant):
                for statement in node.body:
                    yield from _flags(statement, {**names, node.target.id: str(value.value)})
        return
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
        yield _text(node.args[0], names).removeprefix("--")
    for child in ast.iter_child_nodes(node):
        yield from _flags(child, names)


def _text(node: ast.AST, names: Mapping[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return names.get(ast.unparse(node.value), "?")
    return "?"


UNKNOWN = {"verl": unknown_verl, "openrlhf": unknown_openrlhf, "roll": unknown_roll}
VERSIONS = {"verl": "verl/version/version", "openrlhf": "version.txt", "roll": "setup.py"}


def version(framework: str, checkout: Path) -> str:
    """Return the version that a checkout, or the package in it, names."""
    if framework == "roll":
        text = (checkout / "setup.py").read_text(encoding="utf-8")
        found = re.search(r"version=\"?'?([\w.]+)", text)
        return found[1] if found else "unnamed"
    file = checkout / VERSIONS[framework]
    if file.exists():
        return file.read_text(encoding="utf-8").strip()
    named = [one.name for one in checkout.glob(f"{framework}-*.dist-info")]
    return named[0].removesuffix(".dist-info").partition("-")[2] if named else "unnamed"


def check(framework: str, checkout: Path) -> tuple[int, dict[str, list[str]]]:
    """Return how many keys were checked, and by recipe those that the framework does not know."""
    keys = recipe_keys(framework)
    wrong = {name: UNKNOWN[framework](checkout, given) for name, given in keys.items()}
    return len(set().union(*keys.values())), {name: some for name, some in wrong.items() if some}


def main(arguments: Sequence[str]) -> int:
    """Check what is given; return 1 if a key is unknown, or a model cannot be compiled."""
    record: dict[str, Any] = {}
    failed = "models" in arguments and check_models() > 0
    for one in (given for given in arguments if given not in ("--record", "models")):
        framework, _, place = one.partition("=")
        where, _, commit = place.partition("@")
        count, wrong = check(framework, Path(where))
        read = version(framework, Path(where))
        print(f"{framework} {read} {commit}: {count} keys, {sum(map(len, wrong.values()))} unknown")
        for name, keys in wrong.items():
            failed = True
            print(f"  {name}: {', '.join(keys)}")
        entry = record.setdefault(
            framework, {"read": [], "keys": sorted(set().union(*recipe_keys(framework).values()))}
        )
        entry["read"].append({"version": read, "commit": commit or None, "date": f"{datetime.now(UTC):%Y-%m-%d}"})
    if "--record" in arguments and not failed:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
