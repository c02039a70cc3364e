"""Published runs of families left out: the estimate must hold on what it has not seen."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import greentrain.estimate
from benchmarks import estimator
from benchmarks import estimator_predictors as predictors
from benchmarks.estimator_fit import fit_table, toml
from benchmarks.estimator_runs import RUNS_CSV, Run, read_runs, whole
from benchmarks.estimator_scores import Left, Predict, Train, gain, leave_one_family_out
from greentrain.estimate.mfu import MfuTable, shipped, table


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
    if not RUNS_CSV.exists():
        pytest.skip("the published runs are not beside this checkout")
    return whole(read_runs())


@pytest.fixture(scope="module")
def ours(runs: tuple[Run, ...]) -> Left:
    return leave_one_family_out(runs, predictors.table)


def test_unseen_families_are_within_a_fifth_in_the_median(ours: Left) -> None:
    assert len({run.family for run in ours.runs}) >= 20
    assert ours.median <= 0.20
    assert abs(ours.bias) < 0.10


def test_eighty_percent_interval_holds_for_unseen_families(ours: Left) -> None:
    assert ours.coverage is not None
    assert ours.family_coverage is not None
    assert 0.75 <= ours.coverage <= 0.90
    assert 0.75 <= ours.family_coverage <= 0.90
    assert ours.half_width is not None
    assert ours.half_width < 1.8, "an interval that holds because it says nothing"


@pytest.mark.parametrize(
    "baseline",
    [
        predictors.flat(0.40),
        predictors.one_mfu,
        predictors.by_class,
        predictors.llmcarbon(scaled=False),
        predictors.llmcarbon(scaled=True),
    ],
    ids=["6ND/0.40", "one MFU", "MFU by class", "LLMCarbon", "LLMCarbon scaled"],
)
def test_every_baseline_is_beaten(runs: tuple[Run, ...], ours: Left, baseline: Train) -> None:
    theirs = leave_one_family_out(runs, baseline)
    assert ours.median < theirs.median
    _, low, _ = gain(ours, theirs)
    assert low > 0, "95 % interval of the gain, families resampled"


def test_a_family_left_out_has_no_say(runs: tuple[Run, ...]) -> None:
    seen: list[set[str]] = []

    def train(some: Sequence[Run]) -> Predict:
        seen.append({run.family for run in some})
        return predictors.one_mfu(some)

    leave_one_family_out(runs, train)
    families = list(dict.fromkeys(run.family for run in runs))
    assert [set(families) - each for each in seen] == [{family} for family in families]


def test_shipped_table_is_the_one_that_the_runs_give(runs: tuple[Run, ...]) -> None:
    fresh = table(tomllib.loads(toml(fit_table(runs), "peak")))
    assert shipped().rows.keys() == fresh.rows.keys(), "run python benchmarks/estimator.py --write"
    for key, row in fresh.rows.items():
        old = shipped().rows[key]
        assert old.mfu.mid == pytest.approx(row.mfu.mid, rel=0.01)
        assert old.mfu.low == pytest.approx(row.mfu.low, rel=0.01)
        assert (old.runs, old.families) == (row.runs, row.families)
    assert isinstance(shipped(), MfuTable)


def test_tables_are_in_the_package() -> None:
    folder = Path(greentrain.estimate.__file__).parent
    assert (folder / "mfu.toml").is_file()
    assert (folder / "optimum.toml").is_file()


def test_a_part_does_not_replace_the_whole_text(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        estimator.main(["--quick", "--into", str(tmp_path / "text.md")])
