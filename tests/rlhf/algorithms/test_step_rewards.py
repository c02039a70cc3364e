from typing import Any

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.errors import BatchError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.testing.offload_models import decoder, encoder
from recipes.common import step_rewards

NEWLINE = 7


@pytest.mark.parametrize("artifact", [encoder(), decoder(head="score")], ids=["both directions", "causal"])
def test_rewards_are_those_of_each_prefix_scored_alone(artifact: Artifact) -> None:
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 100, 6).astype(np.int32)
    prompts = [prompt, prompt, draw.integers(0, 100, 3).astype(np.int32)]
    completions = [draw.integers(0, 100, n).astype(np.int32) for n in (9, 4, 12)]
    completions[0][[2, 3, 6]] = NEWLINE
    ends = [step_rewards.step_ends(row, [NEWLINE]) for row in completions]
    assert ends[0] == [3, 6, 8]
    device = Emulator()
    try:
        engine = OffloadEngine([place(PassKind.STEP_REWARD, artifact, device)])
        found = step_rewards.submit(engine, prompts, completions, ends, width=14).result()
        assert found.rewards.shape == (3, 14)
        for i, (before, row) in enumerate(zip(prompts, completions, strict=True)):
            assert found.steps[i].nonzero().flatten().tolist() == ends[i]
            for end in ends[i]:
                alone = engine.submit(PassKind.STEP_REWARD, Batch.of([[*before, *row[: end + 1]]])).result().scores
                assert alone is not None
                assert found.rewards[i, end].item() == alone[0, 0]
        assert not found.rewards[~found.steps].any()
        if artifact.program.causal:
            tokens = engine.stats()[PassKind.STEP_REWARD].tokens
            batch = step_rewards.prefixes(prompts, completions, ends)
            rows = device.submit(engine.of(PassKind.STEP_REWARD).device.handle, batch).result().rows
            assert rows == batch.tokens - 6 * (len(ends[0]) + len(ends[1]) - 1) - 3 * (len(ends[2]) - 1) < tokens
    finally:
        device.close()


def test_steps_that_do_not_fit_are_named() -> None:
    prompt, completion = np.array([1, 2], dtype=np.int32), np.array([3, 4], dtype=np.int32)
    with pytest.raises(BatchError, match="completion 0 has 2 tokens, and a step that ends at 2"):
        step_rewards.prefixes([prompt], [completion], [[0, 2]])
    with pytest.raises(BatchError, match="no completion has a step"):
        step_rewards.prefixes([prompt], [completion], [[]])
    with pytest.raises(BatchError, match="1 prompts, 1 completions and 2 lists"):
        step_rewards.prefixes([prompt], [completion], [[0], [0]])


def test_which_score_is_the_reward_is_said_before_anything_runs() -> None:
    device = Emulator()
    prompt, completion = np.array([1, 2], dtype=np.int32), np.array([3, 4], dtype=np.int32)
    try:
        several = OffloadEngine([place(PassKind.STEP_REWARD, encoder(labels=3, layers=1), device)])
        given: tuple[Any, ...] = ([prompt], [completion], [[1]])
        with pytest.raises(ConfigError, match="has 3 scores a sequence: say which one is the reward by label=0 to 2"):
            step_rewards.submit(several, *given)
        with pytest.raises(ConfigError, match="label=3"):
            step_rewards.submit(several, *given, label=3)
        found = [step_rewards.submit(several, *given, label=i).result().rewards[0, 1].item() for i in range(3)]
        whole = several.submit(PassKind.STEP_REWARD, Batch.of([[1, 2, 3, 4]])).result().scores
        assert whole is not None and found == whole[0].tolist()
        none = OffloadEngine([place(PassKind.REFERENCE, decoder(layers=1), device)])
        with pytest.raises(ConfigError, match="log-probabilities, not scores"):
            step_rewards.submit(none, *given, kind=PassKind.REFERENCE)
    finally:
        device.close()


def test_a_completion_ends_its_last_step() -> None:
    assert step_rewards.step_ends(np.array([5, NEWLINE, NEWLINE], dtype=np.int32), [NEWLINE]) == [2]
    assert step_rewards.step_ends(np.array([5, 6], dtype=np.int32), [NEWLINE]) == [1]
    assert step_rewards.step_ends(np.array([], dtype=np.int32), [NEWLINE]) == []
