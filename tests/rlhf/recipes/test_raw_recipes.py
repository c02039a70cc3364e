"""The raw recipes at their smallest: they learn, and overlap changes no bit of what they learn."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from greentrain import GreenSession
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.kinds import PassKind
from recipes.raw import ppo_offload, reinforce_offload
from recipes.raw.ppo_offload import Models, Outcome

SETTINGS = replace(ppo_offload.SMALL, warm_steps=30, steps=6, rollouts=48, lr=2e-3)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return ppo_offload.prepare(SETTINGS)


def run(models: Models, folder: Path, *, sequential: bool, steps: int) -> tuple[Outcome, list[str]]:
    config = {"run": {"dir": str(folder), "name": "ppo"}, "power": {"meters": "auto"}}
    with closing(Emulator()) as device, GreenSession(config, extra_meters=[device.meter]) as green:
        found = ppo_offload.train(replace(SETTINGS, steps=steps), models, green, device, sequential=sequential)
    assert {"generate", "critic", "train"} <= set(green.totals().phase_s)
    return found, ppo_offload.report(found, green)


@pytest.mark.long
def test_the_reward_rises_and_streamed_passes_leave_the_weights_of_sequential_ones(
    models: Models, tmp_path: Path
) -> None:
    streamed, lines = run(models, tmp_path, sequential=False, steps=6)
    assert sum(streamed.rewards[-2:]) / 2 > sum(streamed.rewards[:2]) / 2
    assert abs(streamed.kl[0]) < 0.01  # the reference is the policy that began, but for its integers
    assert streamed.kl[-1] > 0.01
    assert streamed.passes[PassKind.REWARD].sequences == streamed.passes[PassKind.REFERENCE].sequences == 6 * 48
    assert "reference" in lines[2] and "J" in lines[3]

    overlapping, sequential = (run(models, tmp_path, sequential=wait, steps=2)[0] for wait in (False, True))
    assert overlapping.weights == sequential.weights != streamed.weights
    assert overlapping.rewards == sequential.rewards


@pytest.mark.long
@pytest.mark.parametrize("algorithm", reinforce_offload.ALGORITHMS)
def test_without_a_critic_the_reward_rises_too(models: Models, algorithm: str, tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path)}}
    settings = replace(SETTINGS, minibatches=6)
    found = []
    for sequential, steps in ((False, 6), (False, 1), (True, 1)):
        with closing(Emulator()) as device, GreenSession(config) as green:
            found.append(
                reinforce_offload.train(
                    replace(settings, steps=steps), models, green, device, algorithm=algorithm, sequential=sequential
                )
            )
    assert sum(found[0].rewards[-2:]) / 2 > sum(found[0].rewards[:2]) / 2
    assert found[1].weights == found[2].weights != found[0].weights
    dapo = algorithm == reinforce_offload.DAPO
    assert (found[0].sampled > 6 * settings.rollouts) is dapo and (PassKind.REFERENCE in found[0].passes) is not dapo
    if algorithm == reinforce_offload.PROCESS:
        assert found[1].passes[PassKind.STEP_REWARD].sequences > SETTINGS.rollouts


def rollouts(*verdicts: float) -> reinforce_offload.Rollouts:
    """Return rollouts that score this, their ids numbered."""
    scores = torch.tensor(verdicts)
    return torch.arange(len(scores))[:, None], torch.ones(len(scores), 1), scores


def test_groups_that_are_all_right_or_all_wrong_are_sampled_again() -> None:
    bar = torch.tensor(0.5)
    mixed, right, wrong = (0.0, 1.0, 1.0, 0.0), (1.0,) * 4, (0.0,) * 4
    later = [rollouts(*wrong, *mixed), rollouts(*mixed, *mixed)]
    ids, mask, scores = reinforce_offload.dynamically_sampled(rollouts(*right, *mixed), lambda: later.pop(0), bar, 8)
    assert ids.flatten().tolist() == [4, 5, 6, 7] * 2 and scores.tolist() == [*mixed, *mixed] and mask.all()
    assert len(later) == 1, "what is enough ends it"
    asked: list[int] = []

    def hopeless() -> reinforce_offload.Rollouts:
        asked.append(1)
        return rollouts(*wrong)

    ids, _, _ = reinforce_offload.dynamically_sampled(rollouts(*right), hopeless, bar, 8)
    assert len(asked) == reinforce_offload.MOST_DRAWS - 1 and len(ids) == reinforce_offload.GROUP


def test_the_published_hyper_parameters_are_those_of_its_table() -> None:
    found = ppo_offload.table_a1(ppo_offload.SMALL)
    assert (found.lr, found.critic_lr, found.beta, found.rollouts, found.epochs) == (1e-6, 5e-6, 0.05, 256, 1)
    assert found.rollouts // found.minibatches == 32 and found.size == ppo_offload.SMALL.size
