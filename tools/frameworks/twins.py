"""Tiny models and data under the names that TRL's tests load from the Hub, which a run of them must not need.

    python twins.py DIR      # makes DIR/trl-internal-testing; tests that start in DIR load from there

A folder of the name that a test loads goes before the Hub, for models as for data. Weights are random, a tokenizer
knows bytes, words of the chat template and the special tokens of its family, chat templates are those that TRL ships.
What needs images is left out: its tests fail plainly, and so say nothing about GreenTrain.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

ORGANISATION: Final = "trl-internal-testing"
ROWS: Final = 19
"""Rows of a data set, of which the last two are its test split."""
VOCABULARY: Final = 1024
"""Tokens of a tokenizer: bytes, and words of its chat template, without which a prompt with tools is 2,000 long."""
BLOCKS: Final[dict[str, Any]] = {
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
}
NEOX: Final[dict[str, Any]] = {key: told for key, told in BLOCKS.items() if key != "num_key_value_heads"}
EXPERTS: Final = {**BLOCKS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL: Final = {**BLOCKS, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 4}
GLM_EXPERTS: Final = {
    **BLOCKS,
    "moe_intermediate_size": 16,
    "head_dim": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}
CONVOLVED: Final = {**BLOCKS, "full_attn_idxs": [1], "block_multiple_of": 8}
HYBRID: Final[dict[str, Any]] = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "layers_block_type": ["mamba", "attention", "moe"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 4,
    "mamba_n_groups": 1,
    "ssm_state_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
}
QWEN: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA: Final = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
HARMONY: Final = ["<|endoftext|>", "<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"]
COHERE: Final = [
    "<BOS_TOKEN>",
    "<|END_OF_TURN_TOKEN|>",
    "<|START_OF_TURN_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<PAD>",
]
GLM: Final = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "[gMASK]", "<sop>"]
# name of the twin: class, configuration, special tokens, end of a turn, padding, chat template
TWINS: Final[Mapping[str, tuple[str, Mapping[str, Any], Sequence[str], str, str | None, str | None]]] = {
    "tiny-Qwen2ForCausalLM-2.5": ("Qwen2ForCausalLM", BLOCKS, QWEN, "<|im_end|>", "<|endoftext|>", "qwen2_5"),
    "small-Qwen2ForCausalLM-2.5": ("Qwen2ForCausalLM", BLOCKS, QWEN, "<|im_end|>", "<|endoftext|>", "qwen2_5"),
    "tiny-Qwen3ForCausalLM": ("Qwen3ForCausalLM", BLOCKS, QWEN, "<|im_end|>", "<|endoftext|>", "qwen3"),
    "tiny-Qwen3MoeForCausalLM": ("Qwen3MoeForCausalLM", EXPERTS, QWEN, "<|im_end|>", "<|endoftext|>", "qwen3"),
    "tiny-LlamaForCausalLM-3.2": ("LlamaForCausalLM", BLOCKS, LLAMA, "<|eot_id|>", None, "llama3_2"),
    "tiny-MistralForCausalLM-0.2": ("MistralForCausalLM", BLOCKS, ["<s>", "</s>"], "</s>", None, None),
    "tiny-GptOssForCausalLM": ("GptOssForCausalLM", LOCAL, HARMONY, "<|return|>", "<|endoftext|>", "gptoss"),
    "tiny-Cohere2ForCausalLM": ("Cohere2ForCausalLM", BLOCKS, COHERE, "<|END_OF_TURN_TOKEN|>", "<PAD>", "cohere2"),
    "tiny-Glm4MoeForCausalLM": ("Glm4MoeForCausalLM", GLM_EXPERTS, GLM, "<|endoftext|>", "<|endoftext|>", "glm4moe"),
    "tiny-Lfm2ForCausalLM": ("Lfm2ForCausalLM", CONVOLVED, QWEN, "<|im_end|>", "<|endoftext|>", "lfm2"),
    "tiny-Lfm2ForCausalLM-2.5": ("Lfm2ForCausalLM", CONVOLVED, QWEN, "<|im_end|>", "<|endoftext|>", "lfm2_2_5"),
    "tiny-Olmo3ForCausalLM": ("Olmo3ForCausalLM", BLOCKS, QWEN, "<|endoftext|>", "<|endoftext|>", None),
    "tiny-NemotronHForCausalLM-nano": (
        "NemotronHForCausalLM",
        HYBRID,
        QWEN,
        "<|im_end|>",
        "<|endoftext|>",
        "nemotron_3_nano",
    ),
    "tiny-GPTNeoXForCausalLM": ("GPTNeoXForCausalLM", NEOX, QWEN, "<|endoftext|>", None, None),
    "tiny-Qwen2ForSequenceClassification-2.5": (
        "Qwen2ForSequenceClassification",
        BLOCKS,
        QWEN,
        "<|im_end|>",
        "<|endoftext|>",
        "qwen2_5",
    ),
    "tiny-Qwen3ForSequenceClassification": (
        "Qwen3ForSequenceClassification",
        BLOCKS,
        QWEN,
        "<|im_end|>",
        "<|endoftext|>",
        "qwen3",
    ),
    "tiny-LlamaForSequenceClassification-3.2": (
        "LlamaForSequenceClassification",
        BLOCKS,
        LLAMA,
        "<|eot_id|>",
        None,
        "llama3_2",
    ),
}


def tokenizer(special: Sequence[str], end: str, padding: str | None, template: str | None) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and of the words of its chat template.

    Args:
        special: Its special tokens.
        end: The one that ends a turn.
        padding: The one that pads, if any.
        template: Name of TRL's chat template of the family, if it has any.
    """
    told = (files("trl") / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8") if template else None
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner: Any = trainers.BpeTrainer
    made.train_from_iterator(
        [*(told or "").splitlines(), *(str(row) for row in _rows())],
        learner(vocab_size=VOCABULARY, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False),
    )
    begin = special[0] if special is LLAMA or special[0] == "<s>" else None
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, bos_token=begin, eos_token=end, pad_token=padding, model_max_length=4096
    )
    if told:
        wrapped.chat_template = told
    return wrapped


def make_model(folder: Path, name: str) -> None:
    """Save a twin and its tokenizer in a folder of its name."""
    kind, config, special, end, padding, template = TWINS[name]
    words = tokenizer(special, end, padding, template)
    torch.manual_seed(0)
    about = getattr(transformers, kind).config_class(
        vocab_size=len(words), eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, num_labels=1, **config
    )
    getattr(transformers, kind)(about).to(torch.bfloat16).save_pretrained(folder / name)
    words.save_pretrained(folder / name)


REMOTE: Final = """from transformers import Qwen2Config, Qwen2ForCausalLM


class RemoteConfig(Qwen2Config):
    model_type = "remote"


class RemoteForCausalLM(Qwen2ForCausalLM):
    config_class = RemoteConfig
"""


def make_remote(folder: Path) -> None:
    """Save a twin whose class comes with it, which only those load who trust its code."""
    made, name = folder / "tiny-RemoteForCausalLM", "tiny-Qwen2ForCausalLM-2.5"
    shutil.copytree(folder / name, made, dirs_exist_ok=True)
    (made / "remote.py").write_text(REMOTE, encoding="utf-8")
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    classes = {"AutoConfig": "remote.RemoteConfig", "AutoModelForCausalLM": "remote.RemoteForCausalLM"}
    config |= {"architectures": ["RemoteForCausalLM"], "model_type": "remote", "auto_map": classes}
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _rows() -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"The step after {n} is",
            "completion": f" {n + 1}, and its loss is lower.",
            "chosen": f" {n + 1}.",
            "rejected": f" {n - 1}, or nothing at all.",
            "label": n % 3 != 0,
            "completions": [f" a first {n},", f" then {n + 1}."],
            "labels": [True, n % 2 == 0],
        }
        for n in range(ROWS)
    ]


def _said(user: str, *assistant: str) -> list[dict[str, str]]:
    told = [{"role": "user", "content": user}]
    return told + [{"role": "assistant", "content": text.strip()} for text in assistant]


STANDARD: Final = {
    "prompt_only": ["prompt"],
    "prompt_completion": ["prompt", "completion"],
    "preference": ["prompt", "chosen", "rejected"],
    "unpaired_preference": ["prompt", "completion", "label"],
    "stepwise_supervision": ["prompt", "completions", "labels"],
}
"""Columns of each kind of data, as TRL's documents name them."""


def zen() -> dict[str, list[dict[str, Any]]]:
    """Return rows of each kind of data, as text and as conversations."""
    made: dict[str, list[dict[str, Any]]] = {}
    rows = _rows()
    made["standard_language_modeling"] = [{"text": row["prompt"] + row["completion"]} for row in rows]
    made["standard_implicit_prompt_preference"] = [
        {"chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]} for row in rows
    ]
    made["conversational_language_modeling"] = [{"messages": _said(row["prompt"], row["completion"])} for row in rows]
    made["conversational_implicit_prompt_preference"] = [
        {"chosen": _said(row["prompt"], row["chosen"]), "rejected": _said(row["prompt"], row["rejected"])}
        for row in rows
    ]
    for kind, columns in STANDARD.items():
        made[f"standard_{kind}"] = [{column: row[column] for column in columns} for row in rows]
        if kind == "stepwise_supervision":
            continue
        made[f"conversational_{kind}"] = [
            {
                column: row[column]
                if column == "label"
                else _said(row[column])
                if column == "prompt"
                else _said("", row[column])[1:]
                for column in columns
            }
            for row in rows
        ]
    return made


def harmony() -> dict[str, list[dict[str, Any]]]:
    """Return conversations whose answers come with what the assistant thought, and what the template is told beside."""
    made: dict[str, list[dict[str, Any]]] = {"language_modeling": [], "prompt_completion": [], "preference": []}
    for n, row in enumerate(_rows()):
        told = {"reasoning_effort": ("low", "medium", "high")[n % 3], "model_identity": "You are a twin."}
        asks = _said(row["prompt"])
        good, bad = (
            [{"role": "assistant", "thinking": f"One more than {n}.", "content": row[kind].strip()}]
            for kind in ("chosen", "rejected")
        )
        beside = {"chat_template_kwargs": told}
        made["language_modeling"].append({"messages": asks + good, **beside})
        made["prompt_completion"].append({"prompt": asks, "completion": good, **beside})
        made["preference"].append({"prompt": asks, "chosen": good, "rejected": bad, **beside})
    return made


def toolcall() -> dict[str, list[dict[str, Any]]]:
    """Return conversations that call a tool."""
    place = {"type": "object", "properties": {"place": {"type": "string", "description": "where"}}}
    tool = {"name": "intensity", "description": "Carbon intensity of a grid.", "parameters": place}
    tools = json.dumps([{"type": "function", "function": tool}])
    language, preference = [], []
    for n in range(ROWS):
        call = {"type": "function", "function": {"name": "intensity", "arguments": {"place": f"zone {n}"}}}
        asks = _said(f"How green is zone {n}?")
        calls = {"role": "assistant", "tool_calls": [call]}
        told = {"role": "tool", "name": "intensity", "content": str(n)}
        says = {"role": "assistant", "content": f"{n} g/kWh."}
        language.append({"messages": [*asks, calls, told, says], "tools": tools})
        preference.append({"prompt": asks, "chosen": [calls], "rejected": [says], "tools": tools})
    return {"language_modeling": language, "preference": preference}


def make_data(folder: Path, sets: Mapping[str, list[dict[str, Any]]]) -> None:
    """Save sets as a data set of the Hub is laid out: a README that names the files of each."""
    folder.mkdir(parents=True, exist_ok=True)
    head = ["---", "configs:"]
    for name, rows in sets.items():
        head += [f"- config_name: {name}", "  data_files:"]
        for split, part in (("train", rows[:-2]), ("test", rows[-2:])):
            (folder / f"{name}-{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
            head += [f"  - split: {split}", f"    path: {name}-{split}.jsonl"]
    (folder / "README.md").write_text("\n".join([*head, "---", ""]))


def main(where: str) -> None:
    """Make everything in a folder."""
    folder = Path(where) / ORGANISATION
    make_data(folder / "zen", zen())
    make_data(folder / "toolcall", toolcall())
    make_data(folder / "harmony", harmony())
    for name in TWINS:
        make_model(folder, name)
    make_remote(folder)


if __name__ == "__main__":
    main(sys.argv[1])
