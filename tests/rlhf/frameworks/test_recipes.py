"""The recipes that are not run: their keys, their syntax, and what they name of ours."""

import ast
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

from greentrain.fpga_backend.program import LogProb
from recipes import check_configs

FRAMEWORKS = ("verl", "openrlhf", "roll")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_key_was_found_in_the_framework(framework: str) -> None:
    recorded = json.loads(check_configs.RECORD.read_text(encoding="utf-8"))[framework]
    keys = check_configs.recipe_keys(framework)
    assert len(keys) == 2  # GRPO, and PPO with a critic
    for name, found in keys.items():
        assert not set(found) - set(recorded["keys"]), f"{name}: run recipes/check_configs.py with a checkout"
    assert all(read["version"] and read["date"] for read in recorded["read"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_recipes_own_model_can_be_compiled(framework: str) -> None:
    models = check_configs.default_models(framework)
    assert len(models) == 1, "a recipe's model is not found, or frameworks have become several"
    artifact = check_configs.compiled_twin(models.pop())
    last = artifact.program.ops[-1]
    assert isinstance(last, LogProb) and last.activation_bits == 16


def test_a_model_without_a_twin_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_configs, "default_models", lambda framework: {"some/model"})
    assert check_configs.main(["models"]) == 1
    assert "some/model: has no tiny twin" in capsys.readouterr().out


@pytest.mark.parametrize(
    "file", sorted(check_configs.RECIPES.glob("*/*.sh")), ids=lambda file: "/".join(file.parts[-2:])
)
def test_scripts_are_bash(file: Path) -> None:
    subprocess.run(["bash", "-n", file], check=True)


def test_what_recipes_name_of_ours_is_there() -> None:
    named: set[str] = set()
    for framework in FRAMEWORKS:
        for file in (check_configs.RECIPES / framework).iterdir():
            named |= set(re.findall(r"greentrain\.rlhf[.\w]*", file.read_text(encoding="utf-8")))
    assert len(named) >= 4
    for name in named:
        module, _, member = name.rpartition(".") if name.rpartition(".")[2][0].isupper() else (name, "", "")
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None, name
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        assert not member or member in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}, name


def test_unknown_keys_are_found(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("verl/trainer/config/_generated_ppo_trainer.yaml", "algorithm: {lam: 1.0}\ntrainer: {v1: {sync: {}}}\n")
    given = ["algorithm.lam", "algorithm.lamb", "+algorithm.lam", "+greentrain.url", "trainer.v1"]
    assert check_configs.unknown_verl(tmp_path, given) == ["algorithm.lamb", "+algorithm.lam"]
    write(
        "openrlhf/cli/train_ppo_ray.py",
        'p.add_argument("--ref.num_nodes")\nfor x in ("actor", "critic"):\n    p.add_argument(f"--{x}.lr")\n',
    )
    given = ["ref.num_nodes", "critic.lr", "reward.lr"]
    assert check_configs.unknown_openrlhf(tmp_path, given) == ["reward.lr"]
    write("roll/configs/base.py", "class Base:\n    steps: int = 1\n    model: 'Model' = None\n    envs: dict = None\n")
    write("roll/configs/model.py", "class Model:\n    path: str = ''\n")
    write("roll/pipeline/rlvr/rlvr_config.py", "class RLVRConfig(Base):\n    rewards: Dict[str, Model] = None\n")
    given = [
        "steps",
        "hydra.run.dir",
        "model.path",
        "envs.A",
        "rewards.any.path",
        "model.paht",
        "rewards.any.paht",
        "x",
    ]
    assert check_configs.unknown_roll(tmp_path, given) == ["model.paht", "rewards.any.paht", "x"]
