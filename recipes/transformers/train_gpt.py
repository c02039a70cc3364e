"""Train a GPT-2 of 10 M parameters from scratch on Python's own source with the Hugging Face Trainer.

    python recipes/transformers/train_gpt.py [--small]

Any machine, on its GPU where it has one; with --small for half a minute of a core. The lines marked "green" are all
that differs from a plain Trainer script. Nothing is downloaded.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from greentrain.callbacks.transformers import GreenCallback  # green
from recipes.common.model import Size, build_optimizer
from recipes.common.settings import Settings, parse


class Unshifted(Dataset[dict[str, Tensor]]):
    """Blocks as transformers wants them: its models shift the labels themselves."""

    def __init__(self, blocks: Dataset[dict[str, Tensor]]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)  # type: ignore[arg-type]

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        tokens = self.blocks[i]["input_ids"]
        return {"input_ids": tokens, "labels": tokens}


class Printer(TrainerCallback):
    """Prints the validation loss."""

    def __init__(self, settings: Settings) -> None:
        self.entropy = settings.val.unigram_entropy()

    def on_evaluate(self, args: object, state: object, control: object, **kwargs: object) -> None:
        loss = kwargs["metrics"]["eval_loss"]  # type: ignore[index]
        step = state.global_step  # type: ignore[attr-defined]
        print(f"step {step}: val loss {loss:.2f} nats (unigram entropy {self.entropy:.2f})", flush=True)


def gpt2(size: Size) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size.vocab,
            n_positions=size.context,
            n_embd=size.width,
            n_layer=size.layers,
            n_head=size.heads,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def main() -> None:
    settings = parse("gpt-transformers")
    model = gpt2(settings.size)
    green = GreenCallback(settings.green)  # green
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(Path(settings.out) / "checkpoints"),
            max_steps=settings.steps,
            per_device_train_batch_size=settings.batch,
            per_device_eval_batch_size=settings.batch,
            eval_strategy="steps",
            eval_steps=max(1, settings.steps // 4),
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            seed=settings.seed,
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Unshifted(settings.train),
        eval_dataset=Unshifted(settings.val),
        optimizers=build_optimizer(model, settings.steps, settings.lr),
        callbacks=[green, Printer(settings)],  # green
    )
    trainer.train()
    print(f"report: {green.session.report_path}")


if __name__ == "__main__":
    main()
