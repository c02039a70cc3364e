"""From YAML to an engine, and what is wrong in it."""

import copy
import string
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import ArtifactError, BatchError, DeviceError
from greentrain.fpga_backend.remote.server import serve
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.offload import Offload, compiled
from greentrain.rlhf.settings import DeviceSettings, OffloadSettings, PassSettings
from greentrain.rlhf.text import TextEncoder

TOKEN = "a-token-of-a-test-that-nobody-else-has"
TEXTS = ["abc", "a much longer text", ""]


def tokenizer() -> Any:
    words = ["<pad>", "<unk>", *string.ascii_lowercase, " "]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=made, pad_token="<pad>", unk_token="<unk>")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A reward model, a policy, and a model without a score head, as transformers saves them."""
    torch.manual_seed(0)
    small: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    bert: Any = BertConfig(vocab_size=32, max_position_embeddings=64, pad_token_id=0, **small)
    bert.num_labels = 1
    llama: Any = LlamaConfig(vocab_size=32, tie_word_embeddings=True, pad_token_id=0, **small)
    root = tmp_path_factory.mktemp("models")
    made = {"reward": BertForSequenceClassification(bert), "policy": LlamaForCausalLM(llama), "bare": BertModel(bert)}
    for name, model in made.items():
        model.save_pretrained(root / name)
    tokenizer().save_pretrained(root / "reward")
    return {name: str(root / name) for name in made}


@pytest.fixture(scope="module")
def scored(folders: dict[str, str]) -> Any:
    """Scores of the three texts, on the emulator's engine."""
    model: Any = BertForSequenceClassification.from_pretrained(folders["reward"])
    artifact = compile_model(model.eval(), max_tokens=8)
    return Engine(artifact).run(TextEncoder(tokenizer(), 8).batch(TEXTS)).scores


def rewards(offload: Offload) -> Any:
    return offload.engine.submit(PassKind.REWARD, offload.text[PassKind.REWARD].batch(TEXTS)).result().scores


def test_yaml_opens_devices_and_runs_passes(folders: dict[str, str], scored: Any, tmp_path: Path) -> None:
    given = {
        "home": {"name": "emulator"},
        "reward": {"model": folders["reward"], "max_tokens": 8, "sequences": 2},
        "critic": {"model": folders["reward"], "max_tokens": 8, "sequences": 1},
        "step_reward": {"model": folders["reward"], "max_tokens": 8},
        "reference": {"model": folders["policy"], "temperature": 0.7, "activation_bits": 16},
        "depth": 4,
        "timeout_s": 20,
    }
    path = tmp_path / "offload.yaml"
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    with Offload(path) as offload:
        assert np.array_equal(rewards(offload), scored)
        batch = offload.text[PassKind.CRITIC].batch(TEXTS)
        for kind in (PassKind.CRITIC, PassKind.STEP_REWARD):  # as a reward
            scores = offload.engine.submit(kind, batch).result().scores
            assert scores is not None and np.array_equal(scores, scored)
        found = offload.engine.submit(PassKind.REFERENCE, Batch.of([[3, 4, 5], [6, 7]])).result().logprobs
        assert found is not None and [len(row) for row in found] == [2, 1]
        assert PassKind.REFERENCE not in offload.text
        assert offload.engine.of(PassKind.REFERENCE).temperature == 0.7
        assert offload.engine.of(PassKind.REWARD).sequences == 2
        assert offload.engine.of(PassKind.CRITIC).sequences == 1
        assert offload.home is not None
    assert not offload.device.probe().available
    offload.close()


def test_a_device_on_another_machine(
    folders: dict[str, str], scored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("GREENTRAIN_TEST_TOKEN", TOKEN)
    inner = Emulator()
    try:
        with serve(inner, token=TOKEN) as server:
            for token in (TOKEN, {"env": "GREENTRAIN_TEST_TOKEN"}):
                assert DeviceSettings(options={"token": token}).arguments("device") == {"token": TOKEN}
            device = {"name": "remote", "options": {"url": server.url, "token": {"file": str(tmp_path / "token")}}}
            with Offload({"device": device, "reward": {"model": folders["reward"], "max_tokens": 8}}) as offload:
                assert np.array_equal(rewards(offload), scored)
    finally:
        inner.close()


def test_compiled_models_are_kept_and_taken(
    folders: dict[str, str], scored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    given = PassSettings(model=folders["reward"], max_tokens=8)
    first = compiled(PassKind.REWARD, given, cache=True)
    (kept,) = (tmp_path / "cache" / "compiled").iterdir()
    with monkeypatch.context() as patched:
        patched.setattr("greentrain.rlhf.offload._compiled", None)  # would raise
        assert compiled(PassKind.REWARD, given, cache=True).digest == first.digest
    weights = kept / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert compiled(PassKind.REWARD, given, cache=True).digest == first.digest
    with monkeypatch.context() as patched:
        patched.setattr("greentrain.rlhf.offload._compiled", None)
        assert compiled(PassKind.REWARD, given, cache=True).digest == first.digest
    compiled(PassKind.REWARD, PassSettings(model=folders["reward"], max_tokens=9), cache=True)
    assert len(list((tmp_path / "cache" / "compiled").iterdir())) == 2
    monkeypatch.setenv("GREENTRAIN_CACHE_DIR", str(weights))  # no folder: only not kept
    assert compiled(PassKind.REWARD, given, cache=True).digest == first.digest
    saved = tmp_path / "saved"
    first.save(saved)
    tokenizer().save_pretrained(saved)
    with Offload({"reward": {"model": str(saved), "max_tokens": 64}}) as offload:
        assert offload.text[PassKind.REWARD].max_tokens == 8, "the compiled model's"
        assert np.array_equal(rewards(offload), scored)
    with pytest.raises(ArtifactError, match="ends in scores: it is none for the reference pass"):
        Offload({"reference": {"model": str(saved)}})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "no pass is given: name the model of at least one of reward, reference, critic, step_reward"),
        ({"reward": {}}, "reward.model is missing"),
        ({"rewrad": {"model": "x"}}, "unknown key rewrad.*Did you mean 'reward'"),
        ({"reward": {"model": "x", "max_token": 3}}, r"unknown key reward\.max_token.*Did you mean 'max_tokens'"),
        ({"reward": {"model": "x", "max_tokens": 1}}, r"reward\.max_tokens is 1; it must be between 2 and 8192"),
        ({"critic": {"model": "x", "activation_bits": 4}}, r"critic\.activation_bits is '4'; known: 8, 16"),
        ({"reward": {"model": "x", "sequences": "atuo"}}, r"reward\.sequences.*'atuo'"),
        ({"reward": {"model": "x", "sequences": 0}}, r"reward\.sequences is 0"),
        ({"reward": {"model": "x", "temperature": 0.5}}, r"reward\.temperature is 0.5: scores have none"),
        ({"reward": {"model": "x", "truncation": "middle"}}, r"reward\.truncation is 'middle'; known: left, right"),
        ({"reward": {"model": "x"}, "depth": 0}, "depth is 0"),
        ({"reward": {"model": "x"}, "timeout_s": 0}, "timeout_s is 0"),
        ({"reward": {"model": "no/such/folder"}}, "reward.model is 'no/such/folder', no folder at /.*save the model"),
        (
            {"device": {"name": "emulater"}, "reward": {"model": "x"}},
            "device.name is 'emulater'; installed: .*Did you mean 'emulator'",
        ),
        (
            {"home": {"name": "emulator", "options": {"deph": 3}}, "reward": {"model": "x"}},
            "home.options of emulator: .*unexpected keyword argument 'deph'",
        ),
        (
            {"device": {"name": "remote", "options": {"token": {"fiel": "x"}}}, "reward": {"model": "x"}},
            r"device\.options\.token is .*one key, file or env. Did you mean 'file'",
        ),
        (
            {"device": {"name": "remote", "options": {"token": {"env": "NOT_SET_ANYWHERE"}}}, "reward": {"model": "x"}},
            r"device\.options\.token is of the environment variable NOT_SET_ANYWHERE, which is not set",
        ),
        (
            {"device": {"name": "remote", "options": {"token": {"file": "/no/file"}}}, "reward": {"model": "x"}},
            r"device\.options\.token is of the file /no/file, which cannot be read",
        ),
        ({"device": 3, "reward": {"model": "x"}}, "device is 3; it must be a section"),
    ],
)
def test_wrong_settings_say_where_and_what_to_do(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Offload(given)


def test_wrong_files_and_folders(folders: dict[str, str], tmp_path: Path) -> None:
    for text, match in (
        ("[1, 2]", "holds list"),
        ("a: [", "is not valid YAML: line"),
        ("depth: 0\nreward: {model: x}", "depth"),
    ):
        (tmp_path / "wrong.yaml").write_text(text)
        with pytest.raises(ConfigError, match=f"wrong.yaml.*{match}"):
            OffloadSettings.load(tmp_path / "wrong.yaml")
    with pytest.raises(ConfigError, match="is a int"):
        OffloadSettings.load(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"neither config\.json.*nor artifact\.json"):
        Offload({"reward": {"model": str(tmp_path)}})
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="merge the adapter"):
        Offload({"reward": {"model": str(tmp_path)}})
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="which AutoModelForSequenceClassification cannot read"):
        Offload({"reward": {"model": str(tmp_path)}})
    with pytest.raises(ConfigError, match=r"has no classifier\.bias.*numbers would be made up"):
        Offload({"reward": {"model": folders["bare"]}})
    with pytest.raises(DeviceError, match=r"127\.0\.0\.1"):
        device = {"name": "remote", "options": {"url": "http://127.0.0.1:9", "token": TOKEN}}
        Offload({"device": device, "home": {"name": "emulator"}, "reward": {"model": folders["reward"]}})


def test_closing_with_work_left_says_nothing(folders: dict[str, str]) -> None:
    given = {"model": folders["reward"], "max_tokens": 64, "sequences": 1}
    devices = {"device": {"name": "emulator"}, "home": {"name": "emulator"}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with Offload({**devices, "reward": given}) as offload:
            tickets = [offload.engine.submit(PassKind.REWARD, Batch.of([[1] * 64] * 4)) for _ in range(10)]
    assert all(ticket.done() for ticket in tickets)
    assert told == []


@pytest.fixture(scope="module")
def words() -> Iterator[Any]:
    yield tokenizer()


def test_texts_that_are_too_long_or_empty_or_none(words: Any) -> None:
    assert TextEncoder(words, 3).ids(["abcde", ""]) == [[2, 3, 4], [0]]
    left = TextEncoder(words, 3, truncation="left")
    assert left.ids(["abcde", "ab"]) == [[4, 5, 6], [2, 3]]
    assert words.truncation_side == "right", "the trainer's tokenizer was changed"
    assert left.ids([]) == []
    bare = copy.deepcopy(words)
    bare.pad_token = bare.unk_token = None
    assert TextEncoder(bare, 3).ids([""]) == [[0]]
    with pytest.raises(BatchError, match=r"texts\[1\] is a list.*apply_chat_template"):
        left.ids(["a", [{"role": "user", "content": "b"}]])  # type: ignore[list-item]
    with pytest.raises(BatchError, match="one text"):
        left.batch("abc")
    with pytest.raises(ConfigError, match="max_tokens=0"):
        TextEncoder(words, 0)
