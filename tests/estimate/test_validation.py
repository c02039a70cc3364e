"""Published runs of families left out: the estimate must hold on what it has not seen."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import greentrain.estimate
from benchmarks import estimator, estimator_layouts
from benchmarks import estimator_predictors as predictors
from benchmarks.estimator_fit import fit_table, toml
from benchmarks.estimator_layouts import Layouts
from benchmarks.estimator_roofline import Optimum, with_network
from benchmarks.estimator_runs import Run, read_runs, whole
from benchmarks.estimator_scores import Left, Predict, Train, gain, leave_one_family_out
from greentrain.estimate import hours, mfu
from greentrain.estimate.api import Options, estimate
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hours import by_auto
from greentrain.estimate.mfu import table
from greentrain.estimate.model_shape import sized
from greentrain.estimate.values import Range
from greentrain.estimate.workload import Workload


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
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


def test_the_public_call_gives_what_the_benchmark_claims(
    runs: tuple[Run, ...], ours: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters, tokens, device and count alone, with the tables of the families that were not left out."""

    def train(others: Sequence[Run]) -> Predict:
        of = fit_table(others)

        def predict(run: Run) -> Range:
            shape = sized(run.shape.total_parameters, run.shape.active_parameters if run.shape.is_moe else None)
            work = Workload(tokens=run.workload.tokens, precision=run.workload.precision)
            cluster = Cluster(device=run.accelerator.name, count=run.count, g_per_kwh=100.0)
            options = Options(year=run.year, compare_devices=(), compare_zones=())
            with monkeypatch.context() as patched:
                patched.setattr(mfu, "shipped", lambda: of)
                return estimate(shape, work, cluster, method="mfu", options=options).gpu_hours

        return predict

    told = leave_one_family_out(runs, train)
    assert told.median == pytest.approx(ours.median) and told.coverage == ours.coverage
    assert [said.mid for said in told.said] == pytest.approx([said.mid for said in ours.said])


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


def test_the_regression_is_of_a100_and_h100_runs_alone(runs: tuple[Run, ...]) -> None:
    rows = [run for run in runs if run.accelerator.family in predictors.REGRESSED]
    assert 30 < len(rows) < len(runs)
    every, own = predictors.regression(runs), predictors.regression(rows)
    shares = [run.peak_hours / every(run).mid for run in runs]
    assert shares == [run.peak_hours / own(run).mid for run in runs]
    assert min(run.mfu for run in rows) <= min(shares) < max(shares) <= max(run.mfu for run in rows)


def test_a_family_left_out_has_no_say(runs: tuple[Run, ...]) -> None:
    seen: list[set[str]] = []

    def train(some: Sequence[Run]) -> Predict:
        seen.append({run.family for run in some})
        return predictors.one_mfu(some)

    leave_one_family_out(runs, train)
    families = list(dict.fromkeys(run.family for run in runs))
    assert [set(families) - each for each in seen] == [{family} for family in families]


def test_shipped_tables_are_those_that_the_runs_give(runs: tuple[Run, ...]) -> None:
    fresh, old = Layouts(Optimum()).fit_blend(runs), hours.shipped()
    again = "run python benchmarks/estimator.py --write"
    for new_table, old_table in ((fresh.peak, old.peak), (fresh.optimum, old.optimum)):
        new = table(tomllib.loads(toml(new_table, "peak")))
        assert old_table.rows.keys() == new.rows.keys(), again
        for key, row in new.rows.items():
            was = old_table.rows[key]
            assert (was.mfu.low, was.mfu.mid, was.mfu.high) == pytest.approx(
                (row.mfu.low, row.mfu.mid, row.mfu.high), rel=0.01
            ), again
            assert (was.runs, was.families) == (row.runs, row.families), again
        assert (old_table.per_decade, old_table.old_software) == pytest.approx(
            (new.per_decade, new.old_software), rel=0.01
        ), again
    assert old.width == pytest.approx(hours.width(tomllib.loads(estimator_layouts.toml(fresh))), rel=0.01), again


def test_the_blend_and_the_roofline_hold_on_unseen_families(runs: tuple[Run, ...], ours: Left) -> None:
    methods = Layouts(Optimum())
    blended, roofline = (leave_one_family_out(runs, train) for train in (methods.blend, methods.roofline))
    assert blended.median <= 0.20
    assert blended.mean < min(ours.mean, roofline.mean), "it errs less than either of its parts"
    for left in (blended, roofline):
        assert left.coverage is not None and left.family_coverage is not None and left.half_width is not None
        assert 0.75 <= left.coverage <= 0.90
        assert 0.75 <= left.family_coverage <= 0.90
        assert left.half_width < 1.6
        assert abs(left.bias) < 0.10


def test_of_published_runs_every_one_gets_the_blend(runs: tuple[Run, ...]) -> None:
    for run in runs:
        cluster = Cluster(device=run.accelerator.name, count=run.count, g_per_kwh=0.0)
        assert by_auto(run.shape, run.workload, cluster, with_network(run), year=run.year).method == "blend", run.name


def test_tables_are_in_the_package() -> None:
    folder = Path(greentrain.estimate.__file__).parent
    for name in ("mfu.toml", "optimum.toml", "blend.toml"):
        assert (folder / name).is_file()


def test_a_part_does_not_replace_the_whole_text(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        estimator.main(["--quick", "--into", str(tmp_path / "text.md")])
