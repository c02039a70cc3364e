"""Make docs/report.png, the picture in README: train a small model for half a minute, and photograph its report.

    python tools/make_report_picture.py            # needs chromium, or --browser PATH of another of its family

The run is a real one on the machine at hand; without energy sensors its joules are modelled, and the page says so.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import torch

from greentrain import GreenSession

OUT: Final = Path(__file__).resolve().parents[1] / "docs" / "report.png"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
LAYERS: Final = 4


def train(folder: Path, seconds: float) -> Path:
    """Train a small transformer on random tokens, with an evaluation now and then.

    Args:
        folder: Where the run folder goes.
        seconds: How long to train (s).

    Returns:
        Path of the report.
    """
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, 128), torch.nn.TransformerEncoder(layer, LAYERS), torch.nn.Linear(128, 256)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {
        "run": {"dir": str(folder), "name": "small-transformer", "live": False, "book_s": 2.0},
        "carbon": {"signal": "typical", "zone": "US-CAL-CISO", "pue": 1.2},
    }
    with GreenSession(config) as green:
        green.watch(model, optimizer)
        until_s, step = time.monotonic() + seconds, 0
        while time.monotonic() < until_s:
            step += 1
            with green.phase("data"):
                tokens = torch.randint(256, (16, 128))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            with green.phase("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % 40 == 0:
                with green.phase("validation"), torch.no_grad():
                    model(torch.randint(256, (64, 128)))
            green.step(tokens=tokens.numel())
    assert green.report_path is not None
    return green.report_path


def photograph(page: Path, into: Path, browser: str, size: tuple[int, int]) -> None:
    """Write what a browser shows of a page.

    Args:
        page: Path of the page.
        into: Path of the picture.
        browser: Path of the browser.
        size: Width and height of its window (pixels).
    """
    words = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"]
    words += [f"--window-size={size[0]},{size[1]}", f"--screenshot={into}", page.resolve().as_uri()]
    subprocess.run(words, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Train and photograph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to train (default %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="path of the picture")
    parser.add_argument("--size", type=int, nargs=2, default=(1000, 1128), help="of the window (pixels)")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    args = parser.parse_args()
    if args.browser is None:
        raise SystemExit(f"no browser among {', '.join(BROWSERS)}: install one, or name one with --browser")
    with tempfile.TemporaryDirectory() as folder:
        photograph(train(Path(folder), args.seconds), args.out, args.browser, tuple(args.size))
    print(args.out)


if __name__ == "__main__":
    main()
