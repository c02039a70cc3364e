"""benchmarks/rlhf_server.py stays alive and every answer is right; its times are not judged, a loaded machine would."""

from pathlib import Path

import pytest
import torch

from benchmarks.rlhf_server import DEVICES, main


@pytest.mark.long
def test_quick_rows_are_whole_and_right(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert main(["--quick", "--clients", "3"]) == 0, "an answer was wrong"
    finally:
        torch.set_num_threads(threads)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    assert [row[0] for row in rows] == [device for device in DEVICES for _ in range(3)]
    for _, way, clients, requests, per_s, p50_ms, p99_ms, batches, wrong in rows:
        assert wrong == "0" and int(requests) == {"3": 6, "1": 20}[clients]
        assert float(per_s) > 0 and 0 < float(p50_ms) <= float(p99_ms)
        assert int(batches) == int(requests) if way == "one by one" else 0 < int(batches) <= int(requests)


def test_a_part_does_not_replace_the_whole_table(tmp_path: Path) -> None:
    text = tmp_path / "table.md"
    text.write_text("before", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["--quick", "--into", str(text)])
    assert ended.value.code == 2 and text.read_text(encoding="utf-8") == "before"
