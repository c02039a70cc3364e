"""ResNet-50 and BERT with the Hugging Face Trainer: small ones learn, and published ones have published sizes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, ResNetConfig, ResNetForImageClassification

from greentrain.ledger.reader import read_run
from recipes.transformers import bert_mlm, resnet50

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.parametrize(("recipe", "steps"), [("resnet50.py", 100), ("bert_mlm.py", 24)])
def test_a_small_one_learns_and_is_booked(recipe: str, steps: int, tmp_path: Path) -> None:
    command = [f"recipes/transformers/{recipe}", "--small", "--steps", str(steps), "--out", str(tmp_path)]
    environ = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    more = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environ | more,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr and "GreenTrainWarning" not in done.stderr
    losses = [float(loss) for loss in re.findall(r"val loss ([\d.]+) nats", done.stdout)]
    assert len(losses) == 4 and losses[-1] < losses[0]
    report = Path(re.findall(r"^report: (.+)$", done.stdout, re.MULTILINE)[0])
    totals = read_run(report.parent).totals
    assert totals.steps == steps and totals.energy_j > 0
    assert (totals.tokens if recipe.startswith("bert") else totals.samples) > 0


def test_the_published_sizes_are_the_published_models() -> None:
    with torch.device("meta"):
        resnet = ResNetForImageClassification(
            ResNetConfig(**resnet50.SIZES["resnet50"], id2label={i: str(i) for i in range(1000)})
        )
        width, layers, heads = bert_mlm.SIZES["large"]
        bert = BertForMaskedLM(
            BertConfig(
                vocab_size=30_522, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
                intermediate_size=4 * width,
            )
        )  # fmt: skip
    assert resnet.num_parameters() == 25_557_032, "as torchvision's"
    assert bert.num_parameters() == pytest.approx(335e6, rel=0.01), "340 M by the paper's rounding"


def test_shapes_are_the_same_for_the_same_number_and_all_kinds_come() -> None:
    shapes, other = resnet50.Shapes(64, 32, 1), resnet50.Shapes(64, 32, 2)
    assert torch.equal(shapes[5]["pixel_values"], shapes[5]["pixel_values"])
    assert not torch.equal(shapes[5]["pixel_values"], other[5]["pixel_values"])
    assert {int(shapes[i]["labels"]) for i in range(64)} == set(range(4))
    assert shapes[0]["pixel_values"].shape == (3, 32, 32)


def test_a_folder_of_images_has_a_class_a_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("dark", 0), ("light", 255)):
        (tmp_path / name).mkdir()
        image.new("RGB", (40, 30), (colour,) * 3).save(tmp_path / name / "one.png")
    found = resnet50.Images(tmp_path, 32)
    assert found.classes == ("dark", "light") and len(found) == 2
    assert found[1]["pixel_values"].shape == (3, 32, 32)
    assert found[1]["pixel_values"].amin() > found[0]["pixel_values"].amax()
    with pytest.raises(SystemExit, match="--images is"):
        resnet50.Images(tmp_path / "dark", 32)
