"""benchmarks/rlhf_pipeline.py stays alive, the document's table can be read, and simulating needs no framework."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from greentrain.policy.offload.stages import Stage
from greentrain.simulator.pipeline.simulate import Mode
from greentrain.simulator.pipeline.table_sources import from_mapping

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "rlhf-pipeline.md"
CODE = """
import sys
import greentrain.simulator.pipeline.study, greentrain.cli.rlhf
banned = {"torch", "transformers", "trl", "matplotlib", "gymnasium", "greentrain.session", "greentrain.rlhf"}
print(sorted(banned & set(sys.modules)))
"""


def _run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=240)


def test_the_quick_tables_meet_their_closed_forms(tmp_path: Path) -> None:
    script = str(ROOT / "benchmarks" / "rlhf_pipeline.py")
    done = _run(script, "--quick")
    assert done.returncode == 0, done.stderr
    assert "(PASS: below 1e-9 s)" in done.stdout and "MISS" not in done.stdout
    for part in ("Ablation", "Size of the reward model", "The grid", "T(N)", "published, not reproduced"):
        assert part in done.stdout
    text = tmp_path / "table.md"
    text.write_text("before", encoding="utf-8")
    done = _run(script, "--quick", "--into", str(text))
    assert done.returncode == 2 and "--into replaces all tables" in done.stderr and text.read_text() == "before"


@pytest.mark.long
def test_a_real_loop_gives_a_table_that_predicts_its_own_step() -> None:
    from benchmarks.rlhf_pipeline_loop import MODES, validate

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {one.mode: one for one in validate(0.01, 1, 1, width=64)}
    finally:
        torch.set_num_threads(threads)
    assert tuple(found) == MODES
    sequential = found[Mode.SEQUENTIAL]
    assert sequential.measured_s > 2 * 16 * 0.01  # two passes, each in its emulated time
    assert abs(sequential.error) < 0.25
    assert found[Mode.STREAM].predicted_s < found[Mode.PARALLEL].predicted_s <= sequential.predicted_s * (1 + 1e-9)


def test_the_table_of_the_document_can_be_read() -> None:
    block = DOCUMENT.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    found = from_mapping(yaml.safe_load(block), "document")
    assert found.gpus == 8 and found.offloadable == (Stage.REWARD,) and found.embodied_kg == (45.0, 57.5, 70.0)


def test_simulating_a_pipeline_imports_no_framework() -> None:
    done = _run("-c", CODE)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
