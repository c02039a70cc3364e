"""What ``trl grpo --config recipes/trl/grpo.yaml`` starts, at its smallest: TRL's own script with the recipe's file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from greentrain.errors import ConfigError
from tests.rlhf.calm import calm

pytest.importorskip("trl", reason="TRL is not installed (extra 'trl')")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
__all__ = ["calm"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the recipes in it, and the variables that the recipe sets."""
    recipe = yaml.safe_load((ROOT / "recipes/trl/grpo.yaml").read_text(encoding="utf-8"))
    for name, value in {**recipe["env"], "HF_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GREENTRAIN_OFFLOAD_LABEL", raising=False)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")  # the recipe names files from where it is started
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    from greentrain.rlhf.trl import yaml_reward

    yaml_reward.close()


def test_it_trains_with_the_reward_on_a_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trl.scripts import grpo

    from recipes.trl import models

    parser: Any = grpo.make_parser()
    words = ["--max_steps", "1", "--max_completion_length", "4", "--use_cpu", "--disable_tqdm", "true"]
    parsed = parser.parse_args_and_config(["--config", "recipes/trl/grpo.yaml", *words])
    main: Any = grpo.main
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match="cannot read the offload settings"):
        patch.setenv("GREENTRAIN_OFFLOAD", "gone.yaml")
        main(*parsed)
    models.main(["models", "--small"])
    assert "are in models" in capsys.readouterr().out
    main(*parsed)
    said = capsys.readouterr().out
    assert "'rewards/offloaded_reward/mean'" in said, said[-2000:]
    assert (folder / "runs" / "trl-grpo").is_dir()
