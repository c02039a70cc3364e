"""The text of the recipes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.common.data import Blocks, corpus
from recipes.common.model import GPT, Size


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")


def test_the_tokens_are_real_text_and_kept(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    first = corpus(vocab=300, max_bytes=200_000)
    again = corpus(vocab=300, max_bytes=200_000)
    assert first.vocab == 300
    assert np.array_equal(first.train, again.train)
    text = Tokenizer.from_file(str(first.tokenizer)).decode(first.val[:500].tolist())
    assert "def " in text or "import " in text
    assert len(list((tmp_path / "greentrain" / "recipes").glob("stdlib-*/done"))) == 1
    assert len(first.val) < len(first.train)


def test_blocks_are_shifted_by_one() -> None:
    blocks = Blocks(np.arange(21, dtype=np.uint16), context=5)
    assert len(blocks) == 4
    assert blocks[1]["input_ids"].tolist() == [5, 6, 7, 8, 9]
    assert blocks[3]["labels"].tolist() == [16, 17, 18, 19, 20]
    assert len(Blocks(np.arange(21, dtype=np.uint16), context=5, limit=2)) == 2


def test_unigram_entropy_is_that_of_the_labels() -> None:
    halves = Blocks(np.array([9, 1, 2, 1, 2], dtype=np.uint16), context=4)
    assert halves.unigram_entropy() == pytest.approx(np.log(2))


def test_the_model_has_ten_million_parameters_and_looks_only_back() -> None:
    model = GPT(Size(vocab=2048)).eval()
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(10.5e6, rel=0.01)
    ids = torch.arange(16)[None]
    changed = ids.clone()
    changed[0, -1] = 99
    labels = torch.full_like(ids, -100)
    labels[0, :15] = 1  # a change of the last token may not reach the predictions before it
    assert torch.equal(model(ids, labels=labels), model(changed, labels=labels))
