"""Configurations with odd values: each is fine, or one sentence says what is wrong, in bounded time and memory.

The fast tier tries a few hundred mutations, ``--long`` two thousand.
"""

import copy
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError
from greentrain.utils.display import plain
from tests.report.mutations import ODD, places

LONGEST_S = 5.0
"""One file of a kB, on a busy machine."""
WHOLE: Final[dict[str, Any]] = {
    "run": {"dir": "runs", "name": "gpt", "book_s": 10.0, "tags": {"team": "a", "model": "b"}, "report": True},
    "power": {"meters": ["nvml", "rapl"], "sample_s": 0.1, "cpu_scope": "machine"},
    "carbon": {"signal": "constant", "zone": "FRA", "g_per_kwh": 50.0, "pue": 1.2, "lifetime_years": 4},
    "precision": {"gears": ["bf16", "fp8"], "eval_gear": "bf16"},
    "policy": {"name": "schedule", "schedule": [[0, "bf16"], [100, "fp8"]]},
    "actuators": {"width": {"min": 1, "max": 8}},
    "export": {"prometheus": {"host": "127.0.0.1", "port": 9464}, "otel": {"endpoint": "http://127.0.0.1:4318"}},
}
SYNTAX: Final = (
    "&a ", "*a", "<<: ", "- ", "? ", "!!python/object:os.system ", "{", "[", "]", "'", '"', "\t", "|", "\x00", "%",
    "\ufeff",
)  # fmt: skip


def _values(chance: random.Random, unused: Path) -> Any:
    config = copy.deepcopy(WHOLE)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.choice(list(places(config)))
        inside: Any = config
        for step in at[:-1]:
            inside = inside[step]
        if chance.random() < 0.2:
            inside[chance.choice((at[-1], "zonne", 5, "\x1b[2J")) if isinstance(inside, dict) else at[-1]] = None
        else:
            inside[at[-1]] = copy.deepcopy(chance.choice(ODD))
    return config


def _text(chance: random.Random, path: Path) -> Any:
    text = yaml.safe_dump(WHOLE)
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(text))
        kept = chance.choice((0, 1, 5))
        text = text[:at] + chance.choice((*SYNTAX, chr(chance.randrange(0x300)), "9" * 5000)) + text[at + kept :]
    path.write_text(text, encoding="utf-8")
    return path


def _check(make: Callable[[random.Random, Path], Any], seed: int, tmp_path: Path) -> None:
    source = make(random.Random(seed), tmp_path / "green.yaml")
    begun_s = time.process_time()
    try:
        GreenConfig.load(source)
    except ConfigError as error:
        assert len(plain(str(error))) < 4100, seed
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {source!r:.300}") from error
    assert time.process_time() - begun_s < LONGEST_S, seed


@pytest.mark.parametrize("make", [_values, _text])
@pytest.mark.parametrize("part", range(4))
def test_odd_configurations_are_fine_or_named(
    tmp_path: Path, make: Callable[[random.Random, Path], Any], part: int
) -> None:
    for seed in range(40 * part, 40 * part + 40):
        _check(make, seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("make", [_values, _text])
def test_two_thousand_more_are_so(tmp_path: Path, make: Callable[[random.Random, Path], Any]) -> None:
    for seed in range(1000, 2000):
        _check(make, seed, tmp_path)


@pytest.mark.parametrize("key", ["policy:\n  tokens", "run:\n  tags", "unknown"])
@pytest.mark.parametrize("levels", [3, 6, 30])
def test_aliases_of_aliases_make_no_bomb(tmp_path: Path, levels: int, key: str) -> None:
    lines = [f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10) if i else 'x, x'}]" for i in range(levels)]
    path = tmp_path / "green.yaml"
    path.write_text("\n".join(["run:", *lines, f"{key}: *a{levels - 1}"]), encoding="utf-8")
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as told:
            GreenConfig.load(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert len(str(told.value)) < 2000


def test_an_alias_that_holds_itself_is_named(tmp_path: Path) -> None:
    path = tmp_path / "green.yaml"
    path.write_text("run: &a {tags: *a}", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1, column 6: its aliases"):
        GreenConfig.load(path)


def test_a_file_that_never_ends_is_read_so_far_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "green.yaml"
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="has more than 1048576 bytes"):
        GreenConfig.load(path)


@pytest.mark.parametrize(
    "make", [lambda: "x" * 10**6, lambda: [["y"] * 100] * 100, lambda: {"k" * 5000: 1}, lambda: 10**5000]
)
def test_a_message_names_only_the_beginning_of_a_long_value(make: Callable[[], Any]) -> None:
    for section, key in (
        ("carbon", "pue"),
        ("run", "book_s"),
        ("policy", "tokens"),
        ("policy", "name"),
    ):
        with pytest.raises(ConfigError) as told:
            GreenConfig.load({section: {key: make()}})
        assert len(str(told.value)) < 2000
