"""Rank flips of a model folder, the measured column."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from greentrain.cli_fpga import app
from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.flips import measure

transformers = pytest.importorskip("transformers")
WORDS = ["a", "good", "bad", "film", "plot", "was", "the", "very", "not", "at", "all", "fine", "dull", "bright", "slow"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    path = tmp_path_factory.mktemp("model")
    (path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]), encoding="utf-8")
    transformers.BertTokenizerFast(vocab_file=str(path / "vocab.txt")).save_pretrained(path)
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS),
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
    return [" ".join(WORDS[(i * 7 + j * (i + 3)) % len(WORDS)] for j in range(2 + i % 9)) for i in range(40)]


def test_rates_are_measured_and_ordered_as_the_bits(folder: Path) -> None:
    rates = measure(folder, _texts(), ["fp16", "int8", "int4"])
    assert set(rates) == {"fp16", "int8", "int4"}
    assert 0 <= rates["fp16"] <= rates["int8"] < rates["int4"] < 0.5


def test_the_column_of_the_command(folder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(_texts()), encoding="utf-8")
    words = [
        "explore",
        str(folder),
        "--assume",
        "--cards",
        "1",
        "--batch",
        "4",
        "--sequence",
        "16",
        "--precision",
        "int8",
    ]
    result = CliRunner().invoke(app, [*words, "--texts", str(texts), "--json"])
    assert result.exit_code == 0, result.stderr
    rates = {point["flip_rate"] for point in json.loads(result.stdout)["points"]}
    assert rates == {measure(folder, _texts(), ["int8"])["int8"]}
    table = CliRunner().invoke(app, [*words, "--texts", str(texts)], env={"COLUMNS": "200"}).stdout
    assert "flips" in table and "not measured" not in table


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
