"""Rank flips of a model folder, the measured column."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from greentrain.cli.fpga import app
from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.flips import measure

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
WORDS = ["a", "good", "bad", "film", "plot", "was", "the", "very", "not", "at", "all", "fine", "dull", "bright", "slow"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    path = tmp_path_factory.mktemp("model")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(["?", *WORDS])}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(path)
    config = transformers.BertConfig(
        vocab_size=1 + len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=1,
        initializer_range=0.3,
    )
    torch.manual_seed(3)
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    return path


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
