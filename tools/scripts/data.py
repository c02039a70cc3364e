"""Makes the data of scripts, small and the same each time: ``python tools/scripts/data.py NAME FOLDER``."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [f"word{number}" for number in range(60)]


def tokens(folder: Path) -> None:
    """Make two files of 16-bit tokens for nanoGPT: 64 different ones, each likely to follow the one before."""
    place = folder / "data" / "local"
    place.mkdir(parents=True)
    chance = np.random.default_rng(0)
    for name, length in (("train", 20_000), ("val", 4_000)):
        jumps = chance.integers(0, 3, length).cumsum() % 64
        jumps.astype(np.uint16).tofile(place / f"{name}.bin")


def glue(folder: Path) -> None:
    """Make what Accelerate's examples fetch, under the same names: pairs of sentences, models, and ``evaluate``."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

    chance = np.random.default_rng(0)
    for name, count in (("train", 64), ("validation", 16)):
        pairs = [
            {"idx": i, "label": i % 2, **{f"sentence{n}": " ".join(chance.choice(WORDS, 5)) for n in (1, 2)}}
            for i in range(count)
        ]
        _dataset(folder / "nyu-mll" / "glue", "mrpc", name, pairs)
        texts = [{"text": " ".join(chance.choice(WORDS, 10))} for _ in range(500 if name == "train" else 32)]
        _dataset(folder / "Salesforce" / "wikitext", "wikitext-2-v1", name, texts)
    size: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    bert = BertForSequenceClassification(BertConfig(**size, intermediate_size=64))
    llama = LlamaForCausalLM(LlamaConfig(**size, intermediate_size=64, num_key_value_heads=2))
    for model, place in ((bert, folder / "bert-base-cased"), (llama, folder / "HuggingFaceTB" / "SmolLM-360M")):
        model.save_pretrained(place)
        _tokenizer(place)
    (folder / "evaluate.py").write_text(METRIC, encoding="utf-8")


METRIC = '''"""Stands in for the package of this name."""


class Accuracy:
    def __init__(self):
        self.right = []

    def add_batch(self, predictions, references):
        self.right += [bool(p == r) for p, r in zip(predictions, references)]

    def compute(self, predictions=(), references=()):
        self.add_batch(predictions, references)
        right, self.right = self.right, []
        share = sum(right) / len(right)
        return {"accuracy": share, "f1": share}


def load(*_, **__):
    return Accuracy()
'''


def _dataset(folder: Path, name: str, split: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write one split of a configuration, as ``load_dataset(folder, name)`` finds it."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = [{"split": of, "path": f"{name}/{of}.jsonl"} for of in ("train", "validation")]
    told = json.dumps([{"config_name": name, "data_files": files}])
    (folder / "README.md").write_text(f"---\nconfigs: {told}\n---\n", encoding="utf-8")


def _tokenizer(folder: Path) -> None:
    """Write a tokenizer that knows WORDS and adds nothing to them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[BOS]", "[EOS]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    fast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def digits(folder: Path) -> None:
    """Make what Lightning's demonstrations fetch, pictures of noise and their digits, and a script that tunes."""
    import torch

    place = folder / "data" / "MNIST" / "complete"
    place.mkdir(parents=True)
    chance = torch.Generator().manual_seed(0)
    for name, count in (("training", 160), ("test", 32)):
        pictures = torch.randint(0, 256, (count, 28, 28), generator=chance, dtype=torch.uint8)
        torch.save((pictures, torch.arange(count) % 10), place / f"{name}.pt")
    (folder / "tuner.py").write_text(TUNER, encoding="utf-8")


TUNER = """import contextlib
import io
import logging

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader


class Model(BoringModel):
    def __init__(self):
        super().__init__()
        self.lr, self.batch_size = 0.1, 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def train_dataloader(self):
        return DataLoader(RandomDataset(32, 64), batch_size=self.batch_size)


seed_everything(0)
model = Model()
trainer = Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=2,
    logger=False,
    enable_progress_bar=False,
)
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it tells names of files that are drawn by chance
tuner = Tuner(trainer)
tuner.scale_batch_size(model, max_trials=3, steps_per_trial=2)
with contextlib.redirect_stderr(io.StringIO()):  # its bar is drawn by the clock
    tuner.lr_find(model, num_training=20)
print(model.batch_size, model.lr)
trainer.fit(model)
"""


def preferences(folder: Path) -> None:
    """Make texts, preferred answers and prompts for TRL's scripts, a model, and a reward for short answers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    chance = np.random.default_rng(0)
    for name, count in (("train", 64), ("validation", 8)):
        rows = [{key: " ".join(chance.choice(WORDS, n)) for key, n in ANSWERS.items()} for _ in range(count)]
        prompts = [{"prompt": row["prompt"]} for row in rows]
        texts = [{"text": f"{row['prompt']} {row['chosen']}"} for row in rows]
        answers = [{**prompt, "completion": row["chosen"]} for prompt, row in zip(prompts, rows, strict=True)]
        judged = [dict[str, object](row, label=i % 2 == 0) for i, row in enumerate(answers)]
        for kind, made in (("texts", texts), ("pairs", rows), ("prompts", prompts), ("judged", judged)):
            _dataset(folder / kind, "plain", name, made)
    size: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(**size, intermediate_size=64, num_key_value_heads=2, eos_token_id=3, pad_token_id=0)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    _tokenizer(folder / "model")
    reward = "def few(completions, **_):\n    return [-float(len(set(each.split()))) for each in completions]\n"
    (folder / "words.py").write_text(reward, encoding="utf-8")


ANSWERS = {"prompt": 5, "chosen": 6, "rejected": 3}
"""Words of each part; a text's answer ends with one token more."""


def c4(folder: Path) -> None:
    """Make the texts and the tokenizer that torchtitan keeps for its tests, under the same names."""
    chance = np.random.default_rng(0)
    place = folder / "tests" / "assets"
    for each in ("c4_test", "tokenizer"):
        (place / each).mkdir(parents=True, exist_ok=True)
    texts = [{"text": " ".join(chance.choice(WORDS, 40))} for _ in range(400)]
    (place / "c4_test" / "data.json").write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    _tokenizer(place / "tokenizer")


def none(folder: Path) -> None:
    """Make nothing: the script draws its own."""


if __name__ == "__main__":
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"
    {each.__name__: each for each in (tokens, glue, digits, preferences, c4, none)}[sys.argv[1]](Path(sys.argv[2]))
