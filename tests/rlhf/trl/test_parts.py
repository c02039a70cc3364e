"""The adapters one by one: what they read, what they return, what they refuse."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import add_fused_lm_head, get_callable_name, is_async_callable

from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.devices.torch_device import TorchDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.errors import BatchError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.text import TextEncoder
from greentrain.rlhf.trl import attach, yaml_reward
from greentrain.rlhf.trl.attach import offload_reference
from greentrain.rlhf.trl.common import OffloadMetrics, _EndedRows, _observed
from greentrain.rlhf.trl.grpo import OffloadGRPOTrainer
from greentrain.rlhf.trl.late_values import LateBatch
from greentrain.rlhf.trl.precompute import OffloadDPOTrainer, OffloadKTOTrainer
from greentrain.rlhf.trl.reference import OffloadedReference, labelled_rows
from greentrain.rlhf.trl.reward import OffloadedReward
from tests.rlhf.trl import landmarks, tiny

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def compiled() -> Mapping[PassKind, Artifact]:
    return tiny.artifacts()


@pytest.fixture(scope="module")
def engine(compiled: Mapping[PassKind, Artifact]) -> Iterator[OffloadEngine]:
    device = Emulator()
    yield tiny.engine(compiled, device)
    device.close()


def told(asked: list[Any], value: Any) -> Any:
    asked.append(value)
    return value


# -- late numbers ----------------------------------------------------------------------------------------------


def test_a_late_entry_is_waited_for_once_and_by_every_way_of_reading_it() -> None:
    asked: list[str] = []

    def late() -> LateBatch:
        return LateBatch({"a": 1, "late": "placeholder"}, {"late": lambda: told(asked, "there")})

    assert late()["a"] == 1 and not asked
    batch = late()
    assert "late" in batch and len(batch) == 2 and not asked
    assert (batch["late"], batch["late"], len(asked)) == ("there", "there", 1)
    for read in (dict, lambda b: {**b}, copy.copy, lambda b: b.copy(), lambda b: dict(b.items())):
        assert read(late())["late"] == "there"
    assert late().get("late") == late().pop("late") == "there" and "there" in late().values()
    assert late().get("none", 3) == 3
    assert late().setdefault("late", 4) == "there" and late().popitem() in (("late", "there"), ("a", 1))
    changed = late()
    changed["late"] = "set"
    assert changed["late"] == "set"


# -- reference -------------------------------------------------------------------------------------------------


def padded(rows: int = 5, prompt: int = 6, answer: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, mask and labels: prompts padded on the left, completions on the right, one of them masked away."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 46, (rows, prompt + answer), generator=generator)
    mask = torch.ones_like(ids)
    for i in range(rows):
        mask[i, : i % prompt] = 0
        mask[i, prompt + answer - i % 3 :] = 0
    mask[2, prompt:] = 0
    ids[mask == 0] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :prompt] = -100
    return ids, mask, labels


def test_a_float_reference_returns_what_trl_computes() -> None:
    temperature = 0.7
    model = tiny.policy().eval()
    device = TorchDevice()
    exact = compile_model(model, max_tokens=32, precision="fp32", temperature=temperature)
    reference = OffloadedReference(
        OffloadEngine([place(PassKind.REFERENCE, exact, device, temperature=temperature)]), temperature
    )
    ids, mask, labels = padded()
    add_fused_lm_head(model, temperature=temperature)
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs
    found = reference(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, use_cache=False)
    device.close()
    assert found.log_probs.dtype == torch.float32 and found.log_probs.shape == wanted.shape
    assert torch.equal(found.log_probs == 0, wanted == 0) and (found.log_probs[2] == 0).all()
    assert torch.allclose(found.log_probs, wanted, atol=1e-4, rtol=0)
    assert not list(reference.parameters())


def test_what_the_reference_cannot_read_is_refused(engine: OffloadEngine, compiled: Any) -> None:
    reference = OffloadedReference(engine, tiny.TEMPERATURE)
    ids, mask, labels = padded()
    with pytest.raises(ConfigError, match=r"0.5, and the reference pass was placed with 0.9"):
        OffloadedReference(engine, 0.5)
    with pytest.raises(ConfigError, match="pixel_values"):
        reference(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, pixel_values=ids)
    with pytest.raises(ConfigError, match="without attention_mask"):
        reference(input_ids=ids)
    labels[1] = ids[1]
    mask[1] = ids[1] = 0
    mask[1, 3:], ids[1, 3:], labels[1, 3:] = 1, 5, 5
    with pytest.raises(BatchError, match="sequence 1 has no prompt"):
        labelled_rows(ids, mask, labels)


def test_learnt_positions_are_warned_of(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=46, n_positions=64, n_embd=32, n_layer=1, n_head=2, eos_token_id=1))
    device = Emulator()
    found = OffloadEngine([place(PassKind.REFERENCE, compile_model(model, max_tokens=64), device)])
    options = tiny.options(tmp_path, beta=0.0, temperature=1.0)
    made = GRPOTrainer(
        tiny.policy(), lambda **_: [], GRPOConfig(**options), tiny.prompts(), processing_class=tiny.tokenizer()
    )
    with pytest.warns(GreenTrainWarning, match="learnt positions"):
        offload_reference(made, found, beta=0.1)
    device.close()


def test_a_trainer_that_cannot_be_offloaded_is_refused_before_it_trains(
    engine: OffloadEngine, compiled: Mapping[PassKind, Artifact], tmp_path: Path
) -> None:
    def stock(**changed: Any) -> Any:
        options = tiny.options(tmp_path, **{"beta": 0.0} | changed)
        return GRPOTrainer(
            tiny.policy(), reward, GRPOConfig(**options), tiny.prompts(), processing_class=tiny.tokenizer()
        )

    reward = tiny.reward(engine)
    with pytest.raises(ConfigError, match=r"beta=0\.0: a KL term of weight 0"):
        offload_reference(stock(), engine)
    with pytest.raises(ConfigError, match=r"longest prompt has (\d+) tokens.* max_tokens=64: compile it with"):
        offload_reference(stock(max_completion_length=60), engine, beta=0.1)
    with pytest.raises(ConfigError, match=r"samples at temperature 0\.8"):
        offload_reference(stock(temperature=0.8), engine, beta=0.1)
    other = stock()
    other.model.config.vocab_size = 47
    with pytest.raises(ConfigError, match="47 tokens and the compiled reference 46"):
        offload_reference(other, engine, beta=0.1)
    other = stock()
    other.args.sync_ref_model = True
    with pytest.raises(ConfigError, match="the device would go on with the old weights"):
        offload_reference(other, engine, beta=0.1)
    other = stock()
    other.eval_dataset = {"short": tiny.prompts(4), "long": Dataset.from_dict({"prompt": ["a" * 60]})}
    with pytest.raises(ConfigError, match="longest prompt has 60 tokens"):
        offload_reference(other, engine, beta=0.1)
    other = stock()
    other.train_dataset = Dataset.from_dict({"prompt": ["ab" * 50] * 20 + ["c" * 55]})
    other._tokenize_prompts = lambda prompts: ([[3] * (1 if "ab" in prompt else 55) for prompt in prompts], None, {})
    with pytest.raises(ConfigError, match="longest prompt has 55 tokens"):
        offload_reference(other, engine, beta=0.1)
    made = stock()
    assert offload_reference(made, engine, beta=0.1) is made.ref_model and made.beta == made.args.beta == 0.1

    def offloading(**changed: Any) -> OffloadGRPOTrainer:
        mode = changed.pop("mode", "late")
        options = tiny.options(tmp_path, **changed)
        return OffloadGRPOTrainer(
            tiny.policy(), reward, GRPOConfig(**options), tiny.prompts(), engine=engine, mode=mode
        )

    reward._text.tokenizer.chat_template = None
    talks = Dataset.from_dict({"prompt": [[{"role": "user", "content": "why"}]] * 8})
    with pytest.raises(ConfigError, match="has no chat template"):
        OffloadGRPOTrainer(
            tiny.policy(),
            reward,
            GRPOConfig(**tiny.options(tmp_path)),
            talks,
            processing_class=tiny.tokenizer(),
            engine=engine,
        )
    with pytest.raises(ConfigError, match="sync_ref_model"):
        offloading(sync_ref_model=True)
    with pytest.raises(ConfigError, match="mode='later': choose one of eager, late, stream"):
        offloading(mode="later")
    with pytest.raises(ConfigError, match="give args=GRPOConfig"):
        OffloadGRPOTrainer(tiny.policy(), reward, None, tiny.prompts(), engine=engine)


# -- reward ----------------------------------------------------------------------------------------------------


def test_rewards_are_those_of_the_texts_whoever_asked_early(engine: OffloadEngine) -> None:
    reward = tiny.reward(engine)
    questions, answers = ["why not ", "hello ", "one "], ["yes", "", "two three"]
    wanted = reward(prompts=questions, completions=answers, completion_ids=None, column=[1, 2, 3], trainer_state=None)
    calls = engine.stats()[PassKind.REWARD].calls
    reward.prefetch(questions[1:], answers[1:])
    reward.prefetch(["never asked"], [" for"])
    assert reward(prompts=questions, completions=answers) == wanted
    assert engine.stats()[PassKind.REWARD].calls == calls + 3
    assert all(isinstance(score, float) for score in wanted) and len(set(wanted)) == 3
    assert get_callable_name(reward) == "offloaded_reward" and not is_async_callable(reward)
    texts = [question + answer for question, answer in zip(questions, answers, strict=True)]
    inputs = tiny.tokenizer()(texts, padding=True, padding_side="right", return_tensors="pt")
    inputs.pop("token_type_ids", None)
    scores = tiny.reward_model()(**inputs).logits[:, 0]
    assert np.allclose(np.array(wanted, dtype=float), scores.detach().numpy(), atol=2e-3)
    assert reward(prompts=[], completions=[]) == []


def test_conversations_go_through_the_reward_models_template(engine: OffloadEngine) -> None:
    reward = tiny.reward(engine)
    talk, answer = [{"role": "user", "content": "why"}], [{"role": "assistant", "content": "so"}]
    assert reward.ids([talk], [answer]) == [tiny.tokenizer()("u: why a: so ", add_special_tokens=False)["input_ids"]]
    plain = tiny.tokenizer()
    plain.chat_template = None
    with pytest.raises(ConfigError, match="has no chat template"):
        OffloadedReward(engine, TextEncoder(plain, 32)).ids([talk], [answer])


def test_texts_that_are_cut_are_told_of(engine: OffloadEngine) -> None:
    reward = OffloadedReward(engine, TextEncoder(tiny.tokenizer(), 8))
    with pytest.warns(GreenTrainWarning, match=r"1 of 2 texts fill the reward model's 8 tokens.* on the right"):
        reward(prompts=["a long prompt", "b"], completions=["x", "y"])


def test_a_model_with_several_scores_needs_to_know_which(compiled: Mapping[PassKind, Artifact]) -> None:
    device = Emulator()
    several = compile_model(tiny.reward_model(labels=3), max_tokens=16)
    found = OffloadEngine([place(PassKind.REWARD, several, device)])
    text = TextEncoder(tiny.tokenizer(), 16)
    with pytest.raises(ConfigError, match="has 3 scores a sequence: say which one is the reward by label=0 to 2"):
        OffloadedReward(found, text)
    with pytest.raises(ConfigError, match="label=3: the reward model has 3 scores, 0 to 2"):
        OffloadedReward(found, text, label=3)
    with pytest.raises(ConfigError, match="cut after 32 tokens, and the reward model was compiled for 16"):
        OffloadedReward(found, TextEncoder(tiny.tokenizer(), 32), label=0)
    rewards = [OffloadedReward(found, text, label=i)(prompts=["why"], completions=["so"]) for i in range(3)]
    device.close()
    assert len({reward[0] for reward in rewards}) == 3


# -- a recipe's reward -----------------------------------------------------------------------------------------


def test_a_recipes_reward_opens_its_settings_once_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: OffloadEngine
) -> None:
    monkeypatch.delenv(yaml_reward.VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="GREENTRAIN_OFFLOAD is not set"):
        _ = yaml_reward.offloaded_reward
    settings = tmp_path / "offload.yaml"
    monkeypatch.setenv(yaml_reward.VARIABLE, str(settings))
    settings.write_text("reference: {model: x}", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no reward"):
        _ = yaml_reward.offloaded_reward
    tiny.reward_model().save_pretrained(tmp_path / "reward")
    settings.write_text(f"reward: {{model: {tmp_path / 'reward'}, max_tokens: {tiny.MAX_TOKENS}}}", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        _ = yaml_reward.offloaded_reward
    tiny.tokenizer().save_pretrained(tmp_path / "reward")
    score = yaml_reward.offloaded_reward
    assert score.__name__ == "offloaded_reward"
    given: dict[str, Any] = {"prompts": ["why not "], "completions": ["yes"]}
    assert score(**given) == score(**given) == tiny.reward(engine)(**given)
    yaml_reward.close()
    monkeypatch.setenv(yaml_reward.LABEL, "3")
    with pytest.raises(ConfigError, match="label=3: the reward model has 1 scores"):
        score(**given)
    assert not vars(yaml_reward._opened)["_exit_callbacks"], "the device stays open"
    monkeypatch.setenv(yaml_reward.LABEL, "first")
    with pytest.raises(ConfigError, match="GREENTRAIN_OFFLOAD_LABEL='first': give the number of the score"):
        _ = yaml_reward.offloaded_reward
    yaml_reward.close()


def told_wrong(rows: Any) -> None:
    raise KeyError(rows)


# -- rows that end ---------------------------------------------------------------------------------------------


def test_rows_are_told_of_once_without_padding_and_a_fault_stops_nothing() -> None:
    ended: list[Any] = []
    criterion = _EndedRows(torch.tensor([[0, 1], [1, 1]]), [1], ended.append)
    grown = torch.tensor([[0, 5], [6, 7]])
    for tokens in ([8, 1], [9, 0], [1, 0]):
        grown = torch.cat([grown, torch.tensor(tokens)[:, None]], dim=1)
        assert not criterion(grown, None).any()
    assert ended == [{1: ([6, 7], [1])}, {}, {0: ([5], [8, 9, 1])}]
    broken = _EndedRows(torch.ones(1, 1, dtype=torch.long), [1], told_wrong)
    with pytest.warns(GreenTrainWarning, match="KeyError"):
        assert not broken(torch.tensor([[4, 1]]), None).any()


def test_a_generate_of_the_users_own_is_put_back() -> None:
    model = tiny.policy()
    own = model.generate = lambda **_: "own"
    with _observed(model, [1], lambda _: None):
        assert model.generate(attention_mask=torch.ones(1, 1)) == "own"
    assert model.generate is own
    del model.generate
    with _observed(model, [1], lambda _: None):
        pass
    assert "generate" not in vars(model)


def test_figures_of_a_resumed_run_are_a_step_of_its_own(engine: OffloadEngine) -> None:
    figures = OffloadMetrics(engine, [PassKind.REWARD])
    for step in (100, 0):  # resumed there; and trained again from the beginning
        figures.begin(step)
        tiny.reward(engine)(prompts=["why not "], completions=["yes"])
        before = engine.stats()[PassKind.REWARD].busy_s
        figures.begin(step)
        tiny.reward(engine)(prompts=["why not "], completions=["no"])
        busy_s = engine.stats()[PassKind.REWARD].busy_s - before
        assert figures.since(step + 2)["offload/reward/busy_s"] * 2 >= busy_s > 0
        assert figures.since(step + 2) == {}


# -- data with columns -----------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_precomputed_columns_are_trls(algorithm: str, tmp_path: Path) -> None:
    questions = tiny.prompts(6)["prompt"]
    answers = [f" yes {text[: i % 5 + 2]}" for i, text in enumerate(questions)]
    config: Any
    stock: Any
    offloading: Any
    data: dict[str, Any]
    more: dict[str, Any] = {}
    if algorithm == "dpo":
        data = {"prompt": questions, "chosen": answers, "rejected": [" no"] * 6}
        config, stock, offloading = DPOConfig, DPOTrainer, OffloadDPOTrainer
        columns = ("ref_chosen_logps", "ref_rejected_logps")
    else:
        data = {"prompt": questions, "completion": answers, "label": [True, False] * 3}
        more = {"train_sampling_strategy": "sequential"}
        config, stock, offloading = KTOConfig, KTOTrainer, OffloadKTOTrainer
        columns = ("ref_logps", "ref_KL_logps")
    unused = ("num_generations", "max_completion_length", "temperature")
    options = {k: v for k, v in tiny.options(tmp_path, **more).items() if k not in unused}
    options |= {"precompute_ref_log_probs": True, "max_length": 24, "per_device_train_batch_size": 3, "max_steps": 1}
    given = {"train_dataset": Dataset.from_dict(data), "processing_class": tiny.tokenizer()}
    wanted = stock(tiny.policy(), args=config(**options), **given).train_dataset
    model = tiny.policy().eval()
    for device, exact, bound in (
        (TorchDevice(), compile_model(model, max_tokens=32, precision="fp32"), 1e-4),
        (Emulator(), compile_model(model, max_tokens=32), 0.1),
    ):
        found = OffloadEngine([place(PassKind.REFERENCE, exact, device)])
        made = offloading(tiny.policy(), args=config(**options), engine=found, **given)
        assert made.ref_model is None and found.stats()[PassKind.REFERENCE].sequences == 12
        off = max(np.abs(np.array(made.train_dataset[c]) - np.array(wanted[c])).max() for c in columns)
        assert off <= bound and (bound < 0.01 or off > 1e-4)
        made.train()
        device.close()
    assert np.isfinite(made.state.log_history[-1]["train_loss"])
    for changed, why in (
        ({"precompute_ref_log_probs": False}, "set it to True"),
        ({"max_length": 64}, "compiled for max_tokens=32"),
    ):
        with pytest.raises(ConfigError, match=why):
            offloading(tiny.policy(), args=config(**options | changed), engine=found, **given)


# -- versions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", [GRPOTrainer, RLOOTrainer, DPOTrainer, KTOTrainer])
def test_the_installed_trl_keeps_to_the_contract(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attach.check_contract(trainer)
    sources = landmarks.sources_of(trainer)
    assert not landmarks.breaches(trainer.__name__, sources)
    for name in sources:
        without = {key: text for key, text in sources.items() if key != name}
        assert landmarks.breaches(trainer.__name__, without) == [f"there is no {name}"]
        empty = sources | {name: f"def {name}(self): pass"}
        assert any(name in breach for breach in landmarks.breaches(trainer.__name__, empty))
    for name in attach.METHODS[trainer.__name__]:
        attach.check_contract.cache_clear()
        with monkeypatch.context() as patched, pytest.raises(ConfigError, match=f"there is no {name}[.;]"):
            patched.setattr(trainer, name, None)
            attach.check_contract(trainer)
    attach.check_contract.cache_clear()


def test_another_order_or_signature_is_a_breach_and_another_number_alone_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = landmarks.sources_of(GRPOTrainer)
    head, body = sources["_compute_loss"].split("\n", 1)
    early = f'{head}\n    early = inputs["ref_per_token_logps"]\n{body}'
    assert landmarks.breaches("GRPOTrainer", sources | {"_compute_loss": early}) == [
        "_compute_loss reads the reference before the policy's forward"
    ]

    def renamed(self: Any, model: Any, input_ids: Any, attention_mask: Any, keep: Any) -> None: ...

    attach.check_contract.cache_clear()
    with monkeypatch.context() as patched, pytest.raises(ConfigError, match="attention_mask, keep instead of model,"):
        patched.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", renamed)
        attach.check_contract(GRPOTrainer)
    monkeypatch.setattr(attach, "version", lambda _: "1.99.0")
    attach.check_contract.cache_clear()
    with pytest.warns(GreenTrainWarning, match=r"trl 1.99.0 was never tried, only 1.15 and 1.16"):
        attach.check_contract(GRPOTrainer)
    attach.check_contract.cache_clear()
