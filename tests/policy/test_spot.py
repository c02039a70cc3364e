"""Prices from a file and made up, and who buys when."""

from pathlib import Path

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.policy.baselines import PriceFile, Prices, Spot, SyntheticPrices
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Outlook
from greentrain.types import Gear
from tests.policy.cases import action_table
from tests.policy.drive import outlook

MENU = Menu.of(action_table())
SPEED = float(MENU.tokens_per_s[MENU.static])
HOUR = 3600.0
T0 = 1_640_995_200.0


class Rising:
    """A price that grows by one an hour."""

    name = "rising {prices}"
    currency = "EUR"

    def at(self, t_unix_s: Array) -> Array:
        return (t_unix_s - T0) / HOUR


def seen(duty: float, t_unix_s: float = T0 + 500 * HOUR) -> Outlook:
    return outlook(
        ahead=[[300.0]], tokens_left=[duty * 100 * HOUR * SPEED], left_s=[100 * HOUR], current=[OFF], t_unix_s=t_unix_s
    )


def write(folder: Path, rows: str) -> Path:
    path = folder / "prices.csv"
    path.write_text("timestamp_utc,price_per_h\n" + rows, encoding="utf-8")
    return path


def test_dear_hours_are_not_bought() -> None:
    kernel = DecisionKernel(Spot(MENU, Rising()), MENU)
    decided = kernel.decide(seen(0.5))
    assert decided.rows.tolist() == [OFF]
    assert kernel.explain(seen(0.5), decided) == (
        "500 EUR a rank and hour (rising {prices}): 100% of the last 7 days were cheaper, and 50% of the time left is"
        " needed: wait"
    )


def test_cheap_hours_are_bought(tmp_path: Path) -> None:
    rows = "".join(f"{np.datetime64(int(T0 + h * HOUR), 's')}Z,{600 - h}\n" for h in range(600))
    prices = PriceFile(write(tmp_path, rows), currency="EUR")
    policy = Spot(MENU, prices)
    assert policy.name == "spot" and policy.choose(seen(0.5)).rows.tolist() == [MENU.static]
    assert 0 < MENU.width[policy.choose(seen(0.01)).rows][0] < 8, "the cheapest of all hours, and little is needed"


def test_the_width_falls_as_the_price_rises() -> None:
    """One week of prices from 1 to 168, and half of the time needed: the dearer the hour, the fewer the ranks."""

    class Week:
        name, currency = "a week", ""

        def at(self, t_unix_s: Array) -> Array:
            return (t_unix_s - T0) / HOUR % 168 + 1

    policy = Spot(MENU, Week())
    rows = [int(policy.choose(seen(0.5, T0 + (1000 * 168 + hour) * HOUR)).rows[0]) for hour in range(168)]
    widths = MENU.width[rows]
    assert (np.diff(widths) <= 0).all() and widths[0] == 8 and len(set(widths.tolist())) >= 5
    assert {MENU.actions[row].gear for row in rows if row != OFF} == {Gear.BF16}  # type: ignore[union-attr]
    assert {MENU.actions[row].cap for row in rows if row != OFF} == {1.0}  # type: ignore[union-attr]
    assert MENU.tokens_per_s[rows].mean() == pytest.approx(0.5 * SPEED, rel=0.02), "the week does the half that is due"
    narrower = (widths * np.arange(1, 169)).sum()
    assert narrower < 8 * np.arange(1, 85).sum(), "and costs less than eight ranks in the cheapest half of it"


def test_hours_that_cost_nothing_or_less_are_bought_in_full(tmp_path: Path) -> None:
    rows = "".join(f"{np.datetime64(int(T0 + h * HOUR), 's')}Z,{-1.0 if h >= 400 else 5.0}\n" for h in range(600))
    assert Spot(MENU, PriceFile(write(tmp_path, rows))).choose(seen(0.3)).rows.tolist() == [MENU.static]


def test_where_nobody_knows_a_price_the_job_runs(tmp_path: Path) -> None:
    prices = PriceFile(write(tmp_path, "2022-01-01T00:00Z,1\n2022-01-01T01:00Z,2\n"))
    policy = Spot(MENU, prices)
    assert policy.choose(seen(0.1)).rows.tolist() == [MENU.static]
    assert prices.at(np.array([T0 - 1, T0, T0 + 1.9 * HOUR, T0 + 2 * HOUR])).tolist() == pytest.approx(
        [np.nan, 1.0, 2.0, np.nan], nan_ok=True
    )


def test_made_up_prices_say_so_and_stay_the_same() -> None:
    prices = SyntheticPrices(seed=3)
    assert isinstance(prices, Prices)
    t = np.array([T0 + hour * HOUR for hour in range(24 * 60)])
    found = prices.at(t)
    assert np.array_equal(found, SyntheticPrices(seed=3).at(t))
    assert not np.allclose(found, SyntheticPrices(seed=4).at(t))
    assert 0 < found.min() < found.max() < 4 and found.mean() == pytest.approx(2.0, rel=0.05)
    assert np.abs(np.diff(found)).max() < 0.5  # slow, as prices are
    noon, night = found.reshape(-1, 24)[:, 18].mean(), found.reshape(-1, 24)[:, 6].mean()
    assert noon > night
    policy = Spot(MENU, prices)
    kernel = DecisionKernel(policy, MENU)
    decided = kernel.decide(seen(0.5))
    assert policy.name == "spot (synthetic prices)"
    assert "(synthetic prices, seed 3)" in kernel.explain(seen(0.5), decided)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("2022-01-01T00:00Z,1\n", "has 1 rows of data"),
        (
            "2022-01-01T00:00,1\n2022-01-01T01:00Z,2\n",
            r"csv:2: timestamp_utc '2022-01-01T00:00' has no time zone",
        ),
        ("2022-01-01T00:00Z,1\n2022-01-01T00:00Z,2\n", "csv:3: .*is not after"),
        ("2022-01-01T00:00Z,cheap\n2022-01-01T01:00Z,2\n", "csv:2: price_per_h is 'cheap', not a number"),
        ("2022-01-01T00:00Z,1\n2022-01-01T01:00Z,inf\n", "csv:3: price_per_h is 'inf'; it must be between"),
        ("yesterday,1\n", "csv:2: timestamp_utc 'yesterday' is no ISO 8601 time; write it like"),
    ],
)
def test_a_malformed_file_is_told_with_its_line(tmp_path: Path, rows: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PriceFile(write(tmp_path, rows))


def test_a_file_without_columns_or_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    with pytest.raises(ConfigError, match=r"cannot read the trace .*prices\.csv.*policy\.prices_csv"):
        PriceFile(path)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"csv:1: the columns are \['a', 'b'\]"):
        PriceFile(path)
