"""The command, as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from greentrain.cli.fpga import app
from greentrain.fpga_backend.explore.space import PRESETS
from greentrain.testing.offload_models import decoder

SMALL = ["--cards", "1", "--batch", "4", "--sequence", "32"]


def _run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


def test_a_table_that_says_what_it_is() -> None:
    code, out, _ = _run("explore", "minilm", "--assume", *SMALL)
    assert code == 0
    assert "modelled, not run on a card" in out
    assert "the GPU is cheaper" in out
    assert "Rank flips: not measured" in out
    assert "U55C, assumed: " in out and "idle_power_w 30 W" in out
    assert "V80, assumed: " in out
    assert "int4 is of weights only" in out
    assert "A GPU reaches less with small models or batches" in out


def test_without_constants_it_names_each_and_assumes_none() -> None:
    code, out, err = _run("explore", "minilm", *SMALL)
    assert code == 2
    assert not out
    for name in ("idle_power_w (W)", "mac8_j (J)", "clock_hz (Hz)", "--set U55C.", "--assume"):
        assert name in err


def test_constants_that_were_given_are_not_called_assumed() -> None:
    names = "dsp_share=0.5 clock_hz=2e8 array_efficiency=0.7 idle_power_w=25 pcie_j_per_byte=1e-10 mac8_j=1e-11"
    sets = [word for name in [*names.split(), "mac16_j=2e-11"] for word in ("--set", f"U55C.{name}:measured")]
    code, out, err = _run("explore", "minilm", "--card", "u55c", *SMALL, *sets)
    assert code == 0, err
    assert "U55C, assumed:" not in out
    code, out, _ = _run("explore", "minilm", "--card", "u55c", *SMALL, *sets, "--json")
    document = json.loads(out)
    assert document["provenance"] == "modelled"
    assert {q["kind"] for q in document["constants"]["U55C"].values()} == {"datasheet", "measured"}
    ours = [point for point in document["points"] if point["precision"] == "kernel"]
    assert {point["assumed_share"] for point in document["points"] if point not in ours} == {0.0}
    assert ours and all(0 < point["assumed_share"] < 1 for point in ours)  # a latency is assumed, whatever the card's


def test_json_has_every_point(tmp_path: Path) -> None:
    code, out, _ = _run("explore", "llama-3-8b", "--assume", "--batch", "1,128", "--sequence", "512,9000", "--json")
    document = json.loads(out)
    assert code == 0
    assert len(document["points"]) == 2 * 4 * 2 * 2 * 2
    lost = [point for point in document["points"] if not point["fits"]]
    assert len(lost) == 32 + 4 and all(point["reason"] and point["tokens_per_s"] is None for point in lost)
    assert {gpu["name"] for gpu in document["gpus"]} == {"H100", "A100"}
    assert document["verdicts"][0].startswith("512 tokens: the GPU is cheaper.")


def test_lengths_that_the_model_takes(tmp_path: Path) -> None:
    artifact = decoder()
    artifact.save(tmp_path)
    most = artifact.program.max_tokens
    assert most < 128
    words = [str(tmp_path), "--assume", "--cards", "1", "--batch", "4"]
    document = json.loads(_run("explore", *words, "--json")[1])
    assert {point["sequence"] for point in document["points"]} == {most}
    document = json.loads(_run("explore", *words, "--json", "--sequence", f"{most},{most + 1}")[1])
    assert {gpu["sequence"] for gpu in document["gpus"]} == {most}
    assert not any(said.startswith(str(most + 1)) for said in document["verdicts"])
    _, out, _ = _run("explore", *words, "--sequence", f"{most},{most + 1}")
    assert out.count(f"Does not run: the model takes {most} tokens at most.") == 1
    code, out, err = _run("explore", *words, "--sequence", "512")
    assert code == 2 and not out
    assert f"--sequence 512: the model takes {most} tokens at most" in err


def test_a_measured_gpu() -> None:
    words = ["--gpu-tokens-per-s", "5000", "--gpu-power-w", "300"]
    code, out, _ = _run("explore", "minilm", "--assume", *SMALL, *words)
    assert code == 0
    assert "your GPU (given as measured): 0.06 J" in " ".join(out.split())
    assert "measure yours" not in out


def test_a_compiled_model_and_a_model_folder(tmp_path: Path) -> None:
    artifact = decoder()
    artifact.save(tmp_path / "compiled")
    code, out, _ = _run("explore", str(tmp_path / "compiled"), "--assume", *SMALL, "--json")
    document = json.loads(out)
    assert code == 0 and document["model"] == "compiled" and "compiled model" in document["source"]
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(PRESETS["gpt2"][1]), encoding="utf-8")
    by_folder = _run("explore", str(tmp_path / "hf"), "--assume", *SMALL, "--json")[1]
    by_name = _run("explore", "gpt2", "--assume", *SMALL, "--json")[1]
    assert json.loads(by_folder)["points"] == json.loads(by_name)["points"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["minilmm"], "Did you mean 'minilm'"),
        (["minilm", "--precision", "int2"], "known: kernel, kernel-a16, fp16, int8, int8a16, int4"),
        (["minilm", "--batch", "0"], "--batch holds '0'"),
        (["minilm", "--sequence", ""], "--sequence is empty"),
        (["minilm", "--card", "U280"], "U55C, V80"),
        (["minilm", "--set", "U55C.idle=3"], "idle_power_w"),
        (["minilm", "--card", "V80", "--set", "U55C.idle_power_w=3"], "does not name"),
        (["minilm", "--head", "rank"], "score, logprob"),
        (["minilm", "--head", "logprob"], "its head is score"),
        (["minilm", "--gpu", "TPU"], "H100, A100"),
        (["minilm", "--mfu", "3"], "--mfu"),
        (["minilm", "--gpu-power-w", "3"], "belong together"),
        (["minilm", "--gpu-power-w", "3", "--gpu-tokens-per-s", "3"], "one measured GPU"),
        (["minilm", "--texts", "none.txt"], "needs weights"),
        (["minilm", "--batch", ",".join(map(str, range(1, 900)))], "at most 5000"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(words: list[str], says: str) -> None:
    code, out, err = _run("explore", *words, *([] if "--set" in words else ["--assume"]))
    assert code == 2
    assert says in err
    assert not out and "Traceback" not in err
