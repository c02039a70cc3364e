"""Ways to score sequences with one encoder on the CPU: GreenTrain's emulator and everybody else's INT8.

All score the same random BERT (width 768, 12 layers, score head) on the same sequences. Peers get a padded matrix, as
they take a batch, or, in length buckets, one for every 16 tokens of length; GreenTrain packs.
"""

import contextlib
import copy
import io
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.emulator.engine import Engine

VOCABULARY: Final = 8192
TOKENS: Final = 128
NO_PEER: Final = "not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Sequences, as lists and as the padded matrix that peers take."""

    ids: Tensor
    mask: Tensor

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return int(self.mask.sum())

    @property
    def batch(self) -> Batch:
        """The same without padding."""
        return Batch.padded(self.ids, self.mask)


def equal(sequences: int) -> Work:
    """Return sequences of the full length."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCABULARY, (sequences, TOKENS), generator=generator)
    return Work(ids=ids, mask=torch.ones_like(ids))


def ragged(sequences: int) -> Work:
    """Return sequences of 16 tokens to the full length, evenly spread."""
    work = equal(sequences)
    lengths = torch.linspace(16, TOKENS, sequences).round().long()
    return Work(ids=work.ids, mask=(torch.arange(TOKENS) < lengths[:, None]).long())


def encoder(layers: int) -> nn.Module:
    """Return the model that all of them run."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=TOKENS)
    config.num_labels = 1
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        model.classifier.weight.normal_(std=0.05)
    return Logits(model).train(False)  # exporters put back the mode of the outermost module in all that it holds


class Logits(nn.Module):
    """A model that returns its scores [sequences] alone, as exporters want it."""

    def __init__(self, model: BertForSequenceClassification) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.model(input_ids=ids, attention_mask=mask).logits
        return scores


Score = Callable[[Work], Any]


def fp32(model: nn.Module, folder: Path) -> Score:
    return lambda work: model(work.ids, work.mask)


def bf16(model: nn.Module, folder: Path) -> Score:
    low = copy.deepcopy(model).bfloat16()
    return lambda work: low(work.ids, work.mask)


def ours(model: nn.Module, folder: Path) -> Score:
    engine = Engine(compile_model(model.model, max_tokens=TOKENS))  # type: ignore[arg-type]
    return lambda work: engine.run(work.batch).scores


def ours_compiled(model: nn.Module, folder: Path) -> Score:
    engine = Engine(compile_model(model.model, max_tokens=TOKENS), compiled=True)  # type: ignore[arg-type]
    return lambda work: engine.run(work.batch).scores


def torchao_eager(model: nn.Module, folder: Path) -> Score:
    low = _torchao(model)
    return lambda work: low(work.ids, work.mask)


def torchao_compiled(model: nn.Module, folder: Path) -> Score:
    low = torch.compile(_torchao(model), dynamic=False)
    return lambda work: low(work.ids, work.mask)


def _torchao(model: nn.Module) -> nn.Module:
    from torchao.quantization import (  # type: ignore[import-untyped]
        Int8DynamicActivationInt8WeightConfig,
        quantize_,
    )

    low = copy.deepcopy(model)
    quantize_(low, Int8DynamicActivationInt8WeightConfig())
    return low


def torch_ao(model: nn.Module, folder: Path) -> Score:
    from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

    torch.backends.quantized.engine = "onednn"
    low = quantize_dynamic(model, {nn.Linear: per_channel_dynamic_qconfig})  # type: ignore[no-untyped-call]
    return lambda work: low(work.ids, work.mask)


def onnxruntime_int8(model: nn.Module, folder: Path) -> Score:
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole, low = folder / "encoder.onnx", folder / "encoder8.onnx"
    if not whole.exists():
        work = equal(2)
        torch.onnx.export(
            model,
            (work.ids, work.mask),
            str(whole),
            input_names=["ids", "mask"],
            output_names=["scores"],
            dynamic_axes={"ids": {0: "b", 1: "t"}, "mask": {0: "b", 1: "t"}},
            dynamo=False,
        )
        quantize_dynamic(whole, low, per_channel=True, weight_type=QuantType.QInt8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(low), options, providers=["CPUExecutionProvider"])
    return lambda work: session.run(None, {"ids": work.ids.numpy(), "mask": work.mask.numpy()})[0]


def openvino_default(model: nn.Module, folder: Path) -> Score:
    import openvino

    work = equal(2)
    converted = openvino.convert_model(model, example_input=(work.ids, work.mask))
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": 1}
    compiled = openvino.Core().compile_model(converted, "CPU", settings)
    return lambda work: next(iter(compiled((work.ids.numpy(), work.mask.numpy())).values()))


BUCKET: Final = 16
"""Tokens between two buckets' lengths."""


def in_buckets(way: Callable[[nn.Module, Path], Score]) -> Callable[[nn.Module, Path], Score]:
    """Return a way that gets sequences of like lengths together, padded to the next bucket's length only."""

    def ready(model: nn.Module, folder: Path) -> Score:
        score = way(model, folder)

        def scores(work: Work) -> Any:
            ends = (work.mask.sum(1) + BUCKET - 1) // BUCKET * BUCKET
            found = np.empty(len(ends))
            for end in sorted(set(ends.tolist())):
                rows = (ends == end).nonzero()[:, 0]
                part = Work(ids=work.ids[rows, :end].contiguous(), mask=work.mask[rows, :end].contiguous())
                found[rows.numpy()] = _flat(score(part))
            return found

        return scores

    return ready


ORT: Final = "ONNX Runtime int8"
ORT_BUCKETS: Final = "ONNX Runtime int8, in length buckets"
WAYS: Final = {
    "fp32": fp32,
    "bf16": bf16,
    "greentrain": ours,
    "greentrain compiled": ours_compiled,
    "torchao int8": torchao_eager,
    "torchao int8 compiled": torchao_compiled,
    "torch.ao dynamic int8": torch_ao,
    ORT: onnxruntime_int8,
    ORT_BUCKETS: in_buckets(onnxruntime_int8),
    "OpenVINO (bf16 where it can)": openvino_default,
    "OpenVINO, in length buckets": in_buckets(openvino_default),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One way's figures."""

    tokens_per_s: float
    """Best of the rounds."""
    median_per_s: float
    error: float
    """Largest difference from fp32, in standard deviations of the fp32 scores."""


def timed(
    works: dict[str, Work], names: Sequence[str], layers: int, rounds: int, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Time ways in turn, round after round, so that a busy moment hits all of them; ``fp32`` must be among them.

    Returns:
        By way, either why it was not measured or its figures by kind of work.
    """
    model = encoder(layers)
    ready: dict[str, Score] = {}
    found: dict[str, Any] = {}
    scores: dict[tuple[str, str], np.ndarray[Any, np.dtype[np.float64]]] = {}
    with torch.inference_mode(), _quiet():
        for name in names:
            try:
                ready[name] = WAYS[name](model, folder)
                scores |= {(name, kind): _flat(ready[name](work)) for kind, work in works.items()}
            except ImportError:
                found[name] = NO_PEER
                ready.pop(name, None)
            say(f"{name}: ready")
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in scores}
        for _ in range(rounds):
            for name, kind in scores:
                begun_s = time.perf_counter()
                ready[name](works[kind])
                seconds[name, kind].append(time.perf_counter() - begun_s)
    for name in ready:
        found[name] = {}
        for kind, work in works.items():
            right = scores["fp32", kind]
            off = np.abs(scores[name, kind] - right).max() / right.std()
            took = sorted(seconds[name, kind])
            found[name][kind] = Timed(
                tokens_per_s=work.tokens / took[0],
                median_per_s=work.tokens / took[len(took) // 2],
                error=float(off),
            )
    return found


def _flat(scores: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = scores.float().numpy() if isinstance(scores, Tensor) else np.asarray(scores)
    return values.astype(np.float64).reshape(-1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep exporters' and quantisers' chatter out of the table."""
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
