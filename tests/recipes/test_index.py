"""docs/recipes.md names every recipe and nothing else, and a test starts each of them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
INDEX = ROOT / "docs" / "recipes.md"
STARTED = {
    "accelerate/elastic/train.py": ("tests/recipes/test_elastic.py", "test_it_leaves_with_one_process_and_returns"),
    "accelerate/gears.py": ("tests/recipes/test_gears.py", "test_shifts_and_learns"),
    "accelerate/loggers.py": ("tests/recipes/test_loggers.py", "test_what_was_logged_is_what_was_booked"),
    "accelerate/train_gpt.py": ("tests/recipes/test_recipes.py", "test_recipe"),
    "check_configs.py": ("tests/recipes/test_commands.py", "test_the_check_of_keys_ends_with_what_it_found"),
    "estimate/sweeps.py": ("tests/recipes/test_estimate_sweeps.py", "test_four_figures_say_that_they_are_modelled"),
    "kubernetes": ("tests/control/launch/test_kubernetes.py", "test_the_recipes_have_the_published_shapes"),
    "lightning/gears.py": ("tests/recipes/test_gears.py", "test_shifts_and_learns"),
    "lightning/green_day.py": ("tests/recipes/test_green_day.py", "test_a_day_in_a_minute"),
    "lightning/loggers.py": ("tests/recipes/test_loggers.py", "test_what_was_logged_is_what_was_booked"),
    "lightning/train_gpt.py": ("tests/recipes/test_recipes.py", "test_recipe"),
    "openrlhf": ("tests/rlhf/frameworks/test_recipes.py", "test_every_key_was_found_in_the_framework"),
    "raw/elastic.py": ("tests/recipes/test_elastic.py", "test_it_leaves_with_one_process_and_returns"),
    "raw/offload.py": ("tests/recipes/test_offload.py", "test_the_reference_runs_beside_the_training"),
    "raw/ppo_offload.py": ("tests/recipes/test_commands.py", "test_rl_in_a_loop_of_ones_own"),
    "raw/reinforce_offload.py": ("tests/recipes/test_commands.py", "test_rl_in_a_loop_of_ones_own"),
    "raw/train.py": ("tests/recipes/test_recipes.py", "test_recipe"),
    "ray/train.py": ("tests/recipes/test_ray_recipe.py", "test_it_trains_on_a_worker_and_the_run_is_one"),
    "roll": ("tests/rlhf/frameworks/test_recipes.py", "test_every_key_was_found_in_the_framework"),
    "slurm": ("tests/control/launch/test_slurm.py", "test_the_recipe_is_a_script_that_slurm_takes"),
    "transformers/bert_mlm.py": ("tests/recipes/test_images_and_masks.py", "test_a_small_one_learns_and_is_booked"),
    "transformers/loggers.py": ("tests/recipes/test_loggers.py", "test_what_was_logged_is_what_was_booked"),
    "transformers/resnet50.py": ("tests/recipes/test_images_and_masks.py", "test_a_small_one_learns_and_is_booked"),
    "transformers/train_gpt.py": ("tests/recipes/test_recipes.py", "test_recipe"),
    "trl/dpo_offload.py": ("tests/rlhf/recipes/test_trl_recipes.py", "test_dpo_asks_the_reference_once"),
    "trl/grpo.yaml": ("tests/recipes/test_trl_command.py", "test_it_trains_with_the_reward_on_a_device"),
    "trl/grpo_offload.py": ("tests/rlhf/recipes/test_trl_recipes.py", "test_each_algorithm_trains"),
    "trl/models.py": ("tests/recipes/test_trl_command.py", "test_it_trains_with_the_reward_on_a_device"),
    "verl": ("tests/rlhf/frameworks/test_recipes.py", "test_every_key_was_found_in_the_framework"),
}
"""What starts a recipe; of files of jobs, for which there is no cluster, what checks them."""
PARTS = {"accelerate/two_processes.yaml", "accelerate/gears_deepspeed.yaml", "trl/multi_gpu.yaml", "ray/README.md"}
"""What the page may name beside recipes: how to start one, or more about one."""


def on_disk() -> set[str]:
    """Return the recipes: scripts that can be started, TRL's file, and folders of a job's files."""
    found = set()
    for path in RECIPES.rglob("*"):
        name = path.relative_to(RECIPES).as_posix()
        if path.suffix == ".py" and re.search(r"__main__|^sys\.path\.insert", path.read_text("utf-8"), re.MULTILINE):
            found.add(name)
        elif path.suffix in (".sh", ".sbatch") or (
            path.suffix == ".yaml" and path.parent.name in ("kubernetes", "roll")
        ):
            found.add(path.parent.name)
    return found | {"trl/grpo.yaml"}


def text() -> str:
    return INDEX.read_text(encoding="utf-8")


def linked() -> set[str]:
    """Return what the page links to below recipes; a README of a folder without scripts stands for the folder."""
    links = set(re.findall(r"\]\(\.\./recipes/([^)#]+)\)", text()))
    return {link.removesuffix("/README.md") if link not in PARTS else link for link in links}


def test_the_page_names_every_recipe_and_nothing_else() -> None:
    assert linked() - PARTS == on_disk()


def test_every_recipe_has_a_command_or_files_to_apply() -> None:
    commands = "\n".join(re.findall(r"^```bash\n(.*?)^```", text(), re.DOTALL | re.MULTILINE))
    for name in on_disk() - {"roll"}:  # it is copied into ROLL: its README says how
        assert f"recipes/{name}" in commands, name
    for file in re.findall(r"recipes/[\w/]+\.\w+", commands):
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("name", sorted(on_disk()))
def test_a_test_starts_it(name: str) -> None:
    file, test = STARTED[name]
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert any(found.startswith(test) for found in tests), f"{file} has no {test}"
    last = Path(name).stem if name.endswith(".py") else Path(name).name
    assert last in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not say {last}"
    assert set(STARTED) == on_disk()


@pytest.mark.parametrize("name", sorted(name for name in on_disk() if name.endswith(".py")))
def test_its_docstring_says_how_it_is_started(name: str) -> None:
    said = ast.get_docstring(ast.parse((RECIPES / name).read_text(encoding="utf-8"))) or ""
    assert f"recipes/{name}" in said
    assert all(len(line) <= 120 for line in said.splitlines())
