"""Train BERT by masked language modelling on Python's own source with the Hugging Face Trainer.

    python recipes/transformers/bert_mlm.py [--small] [--size tiny|base|large]

``--size large`` is BERT-Large (Devlin et al., https://arxiv.org/abs/1810.04805, section 3: 24 layers of 1,024 features,
16 heads), for a GPU; the default is a tiny one, for any machine. 15 % of the tokens are asked for, as there: 80 % of
them masked, 10 % replaced, 10 % left. The lines marked "green" are all that differs from a plain Trainer script.
Nothing is downloaded.
"""

import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from greentrain.callbacks.transformers import GreenCallback  # green
from recipes.common.model import build_optimizer
from recipes.common.settings import parse

SIZES: Final = {"tiny": (128, 2, 2), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Features, layers, heads."""
RATES: Final = {"tiny": 4e-3, "base": 1e-4, "large": 1e-4}
"""Peak learning rates; those of base and large are BERT's (appendix A.2)."""


class Unlabelled(Dataset[dict[str, Tensor]]):
    """Blocks without labels: the collator masks tokens and asks for them."""

    def __init__(self, blocks: Dataset[dict[str, Tensor]]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)  # type: ignore[arg-type]

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.blocks[i]["input_ids"]}


class Printer(TrainerCallback):
    """Prints the validation loss."""

    def on_evaluate(self, args: object, state: object, control: object, **kwargs: object) -> None:
        loss = kwargs["metrics"]["eval_loss"]  # type: ignore[index]
        print(f"step {state.global_step}: val loss {loss:.2f} nats a masked token", flush=True)  # type: ignore[attr-defined]


def main() -> None:
    settings = parse("bert-mlm", sizes=tuple(SIZES))
    width, layers, heads = SIZES[settings.model_size]
    file = str(settings.corpus.tokenizer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, mask_token="[MASK]", pad_token="[PAD]")  # type: ignore[no-untyped-call]
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=settings.size.context,
            type_vocab_size=1,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    print(f"BERT {settings.model_size}: {model.num_parameters() / 1e6:.1f} M parameters")
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
            include_num_input_tokens_seen="all",
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            seed=settings.seed,
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        train_dataset=Unlabelled(settings.train),
        eval_dataset=Unlabelled(settings.val),
        optimizers=build_optimizer(model, settings.steps, RATES[settings.model_size]),
        callbacks=[green, Printer()],  # green
    )
    trainer.train()
    print(f"report: {green.session.report_path}")


if __name__ == "__main__":
    main()
