"""Ranks of a model folder by precision: the measured column, and preferences of the user's own."""

import csv
import gzip
import json
import random
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

from greentrain.cli.fpga import app
from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.flips import advice, measure, rank, read_preferences, references
from tests.helpers import tiny_reward_model
from tests.helpers.tiny_reward_model import MAX_TOKENS, WORDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reward_model.write(tmp_path_factory.mktemp("model"))


def _texts() -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 12))) for _ in range(80)]


@pytest.fixture(scope="module")
def rates(folder: Path) -> dict[str, float]:
    return measure(folder, _texts(), ["fp16", "int8", "int8a16", "int4"])


def test_rates_are_measured_and_ordered_as_the_bits(rates: dict[str, float]) -> None:
    assert set(rates) == {"fp16", "int8", "int8a16", "int4"}
    assert 0 <= rates["fp16"] < rates["int8a16"] < rates["int8"] < rates["int4"] < 0.5


def test_the_column_of_the_command(folder: Path, rates: dict[str, float], tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(_texts()), encoding="utf-8")
    words = ["--cards", "1", "--batch", "4", "--sequence", "16", "--precision", "int8", "--texts", str(texts), "--json"]
    result = CliRunner().invoke(app, ["explore", str(folder), "--assume", *words])
    assert result.exit_code == 0, result.stderr
    assert {point["flip_rate"] for point in json.loads(result.stdout)["points"]} == {rates["int8"]}


def test_what_cannot_be_measured(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 texts make 3 pairs"):
        measure(folder, ["a", "b", "c"], ["int8"])
    headless = tmp_path / "headless"
    headless.mkdir()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (headless / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}), encoding="utf-8")
    with pytest.raises(ConfigError, match="holds BertModel"):
        measure(headless, _texts(), ["int8"])
    (headless / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        measure(headless, _texts(), ["int8"])


Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def labelled(folder: Path) -> Pairs:
    """Return pairs whose labels are FP32's own order, so that what differs from them is a flip."""
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 20))) for _ in range(120)]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    (exact,), _ = rank(folder, pairs, [])
    found = [pair if rank(folder, [pair], [])[0][0]["agreement"] == 1 else pair[::-1] for pair in pairs[:12]]
    assert 0 < exact["agreement"] < 1
    return found


def test_fp32_is_the_reference(folder: Path, labelled: Pairs) -> None:
    (exact, bf16, int8), cut = rank(folder, labelled, ["bf16", "int8"])
    assert cut == 0 and (exact["precision"], exact["agreement"], exact["flip_rate"]) == ("fp32", 1.0, 0.0)
    assert exact["error_max"] == 0 and exact["rank_correlation"] == pytest.approx(1)
    assert exact["flip_low"] == 0 and exact["flip_high"] == pytest.approx(1 - 0.025 ** (1 / 12))
    assert 0 < bf16["error_mean"] <= bf16["error_p95"] <= bf16["error_max"] < 1
    for one in (bf16, int8):  # labels are FP32's: what no longer agrees has flipped
        assert one["flip_rate"] == pytest.approx(1 - one["agreement"])
        assert one["flip_low"] <= one["flip_rate"] <= one["flip_high"]


def test_error_grows_as_bits_go(folder: Path, labelled: Pairs) -> None:
    (_, *found), _ = rank(folder, labelled, ["w8a16", "int8", "int4"])
    errors = [one["error_mean"] for one in found]
    assert errors == sorted(errors) and errors[0] > 0


def test_a_long_dialogue_keeps_its_end_and_is_counted(folder: Path) -> None:
    start, end = " ".join(WORDS * 3), " ".join(WORDS[: MAX_TOKENS - len(WORDS)] * 2)
    kept = " ".join((start + " " + end).split()[-MAX_TOKENS:])
    long, cut = rank(folder, [(f"{start} {end}", "good film")], [])
    short, none = rank(folder, [(kept, "good film")], [])
    assert (cut, none) == (1, 0) and long == short


def _written(path: Path, pairs: Pairs) -> Path:
    lines = [json.dumps({"chosen": better, "rejected": worse}) for better, worse in pairs]
    data = "\n".join([*lines, ""]).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_the_command(folder: Path, labelled: Pairs, tmp_path: Path) -> None:
    out = tmp_path / "ranks.csv"
    file = _written(tmp_path / "test.jsonl.gz", labelled)
    words = ["ranks", str(folder), str(file), "--precision", "bf16,int8", "--out", str(out)]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    written = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [row["precision"] for row in rows] == ["fp32", "bf16", "int8"]
    assert [float(row["error_max"]) for row in written] == [row["error_max"] for row in rows]
    shown = CliRunner().invoke(app, [*words, "--pairs", "5"], env={"COLUMNS": "200"})
    assert "measured" in shown.stdout and "0 of 10" in shown.stdout


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"chosen": "a", "rejected": "b"}', "{"], "line 2: JSONDecodeError"),
        (["", '{"chosen": "a"}'], r"line 2: KeyError\('rejected'\)"),
        (['{"chosen": 7, "rejected": "b"}'], "line 1: .*chosen or rejected is no text"),
        (["7"], "line 1: TypeError"),
        ([""], "no pair"),
    ],
)
def test_a_broken_line_is_named(lines: list[str], says: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        read_preferences(path)


def test_a_torn_archive_is_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "pairs.jsonl.gz", [("a", "b")] * 50)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ConfigError, match="EOFError"):
        read_preferences(path)


def test_advice_is_eight_bits_only_where_flips_allow_it() -> None:
    def ranked(eight: float) -> list[dict[str, object]]:
        return [{"precision": "int8", "flip_high": eight}, {"precision": "int8a16", "flip_high": 0.001}]

    assert advice(ranked(0.009)).startswith("Take activation_bits=8: flips with 8 bits are at most 0.90%")
    assert advice(ranked(0.011)).startswith("Take activation_bits=16") and "more pairs" in advice(ranked(0.011))
    assert advice(ranked(0.011)[:1]) == ""


@pytest.fixture(scope="module")
def causal(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a causal language model that reads the words of the reward model."""
    path = tmp_path_factory.mktemp("causal")
    config = transformers.GPT2Config(
        vocab_size=1 + len(WORDS), n_embd=32, n_layer=1, n_head=4, n_positions=MAX_TOKENS, initializer_range=0.3
    )
    torch.manual_seed(3)
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(path)
    return path


def test_a_reference_is_measured_by_its_kl(causal: Path, folder: Path, tmp_path: Path) -> None:
    (exact, bf16, int8, sixteen), cut = references(causal, [*_texts()[:8], "a"], ["bf16", "int8", "int8a16"])
    assert cut == 0 and exact["error_max"] == exact["kl"] == 0 and exact["tokens"] > 8
    assert 0 < sixteen["kl"] < int8["kl"] and 0 < sixteen["error_mean"] < int8["error_mean"] < 1
    assert advice([bf16, int8, sixteen]).startswith("Take activation_bits=")
    file = _written(tmp_path / "pairs.jsonl", [("a good film", "a bad film at all")])
    result = CliRunner().invoke(app, ["ranks", str(causal), str(file), "--precision", "int8,int8a16", "--json"])
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert [row["precision"] for row in said["rows"]] == ["fp32", "int8", "int8a16"]
    assert "nats a token" in said["advice"] and "twice the products" in said["advice"]
    with pytest.raises(ConfigError, match="no text has two tokens"):
        references(causal, ["a"], ["int8"])
    with pytest.raises(ConfigError, match="holds BertForSequenceClassification"):
        references(folder, ["a film"], ["int8"])
