"""Pictures: what is on them, that labels do not lie on each other, and what is drawn where."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from PIL import Image

from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError, RunFolderError
from greentrain.policy.action_sources import reference_table
from greentrain.policy.menu import OFF, Menu
from greentrain.simulator.advice import advise, draw_advice
from greentrain.simulator.grids import ZoneGrid
from greentrain.simulator.picture import OFF_COLOUR, apart, draw_scene, legend_rows, row_colours, save, stretches
from greentrain.simulator.scene import NOTHING, Course, Scene
from greentrain.simulator.study import Study, run_study, safe, write_results
from greentrain.utils.quantities import signed
from tests.simulator.grids import HOUR, START, trace, wandering
from tests.simulator.planning import ACTIONS, grid


@pytest.fixture(scope="module")
def scene() -> Scene:
    config = GreenConfig.load({"policy": {"name": "mpc", "tokens": 24 * HOUR * 1000.0, "deadline_h": 48.0}})
    study = Study(config=config, grids=[grid()], actions=ACTIONS, windows=3)
    ((_, found),) = run_study(study).scenes()
    return found


def _texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))]  # type: ignore[attr-defined]


def _labels(figure: Figure, axes: int) -> list[Annotation]:
    found = [child for child in figure.axes[axes].get_children() if isinstance(child, Annotation)]
    return [label for label in found if label.get_text() != "deadline"]


def test_a_scene_names_axes_units_policies_actions_and_what_it_rests_on(scene: Scene) -> None:
    figure = draw_scene(scene)
    texts = " ".join(_texts(figure))
    for course in scene.courses:
        assert course.name in texts
    for word in (
        "g CO\N{SUBSCRIPT TWO}e/kWh",
        "kg CO\N{SUBSCRIPT TWO}e",
        "UTC",
        "deadline",
        "off",
        "fp8",
        "assumed",
        "replayed",
    ):
        assert word in texts, word
    assert scene.title in texts


def test_no_label_lies_on_another_or_outside(scene: Scene) -> None:
    figure = draw_scene(scene)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(label) for label in _labels(figure, 2)]  # without their arrows
    assert len(boxes) == len(scene.courses)
    for i, box in enumerate(boxes):
        assert box.x1 <= figure.bbox.x1 and box.y0 >= 0
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_the_strips_show_what_was_chosen_in_its_colour(scene: Scene, tmp_path: Path) -> None:
    figure = draw_scene(scene)
    bars = [patch for patch in figure.axes[1].patches]
    assert len(bars) == sum(len(stretches(course)) for course in scene.courses)
    path = save(figure, tmp_path / "new" / "scene.png")
    with Image.open(path) as image:
        assert image.width > 1000 and image.height > 700
        colours = {colour for _, colour in image.convert("RGB").getcolors(1_000_000) or []}
    wanted = {row for course in scene.courses for row in course.rows.tolist() if row != NOTHING}
    for row in wanted:
        text = row_colours(scene.menu)[row].removeprefix("#")
        assert tuple(int(text[i : i + 2], 16) for i in (0, 2, 4)) in colours
    assert path.stat().st_size > 20_000


def test_neighbours_with_one_row_are_one_stretch_and_nothing_is_drawn_where_nothing_ran() -> None:
    rows = np.array([1, 1, NOTHING, 0, 2, 2])
    course = Course(name="x", edges_unix_s=np.arange(7.0), rows=rows, grams=np.arange(7.0))
    assert stretches(course) == [(0.0, 2.0, 1), (3.0, 4.0, 0), (4.0, 6.0, 2)]


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=12))
def test_labels_stand_apart_in_order(values: list[float]) -> None:
    places = apart(values, 3.0)
    order = np.argsort(values, kind="stable")
    gaps = np.diff(np.array(places)[order])
    assert (gaps >= 3.0 - 1e-6).all() and min(places) >= 0
    if len(values) == 1:
        assert places == values


def test_labels_of_equal_values_stand_around_them() -> None:
    assert apart([50.0, 50.0, 10.0], 4.0) == [48.0, 52.0, 10.0]
    assert apart([50.0, 50.0, 50.0, 57.0], 4.0) == [45.75, 49.75, 53.75, 57.75]


def test_colours_tell_gears_apart_and_speeds_within_a_gear() -> None:
    menu = Menu.of(reference_table())
    colours = row_colours(menu)
    assert colours[OFF] == OFF_COLOUR and len(set(colours)) > 40
    darkness = [sum(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in colours]
    fp8 = [row for row in range(1, len(menu)) if menu.fp8[row]]
    fp8.sort(key=lambda row: float(menu.tokens_per_s[row]))
    assert all(darkness[a] >= darkness[b] for a, b in pairwise(fp8))


def test_a_legend_of_many_actions_names_the_ends_of_each_gear() -> None:
    menu = Menu.of(reference_table())
    few = legend_rows(menu, [0, 1, 2])
    assert [row for row, _ in few] == [0, *sorted((1, 2), key=lambda row: menu.tokens_per_s[row])]
    many = legend_rows(menu, list(range(len(menu))))
    names = [name for _, name in many]
    assert names[0] == "off" and "bf16 on 8" in names and "fp8 on 8" in names and len(names) == 7


def test_a_difference_has_a_sign() -> None:
    assert (
        signed(-0.123, plus=True) == "\N{MINUS SIGN}12.3 %"
        and signed(0.5, plus=True) == "+50.0 %"
        and signed(-0.0001, plus=True) == "0.0 %"
    )


@pytest.mark.parametrize("zones", [1, 3])
def test_advice_shows_every_zone_and_its_three_ways(zones: int) -> None:
    grids = [
        ZoneGrid(zone=f"zone {i}", trace=trace(wandering(36, i), name=f"zone {i}"), label=f"zone {i}: made up")
        for i in range(zones)
    ]
    keys: dict[str, Any] = {"tokens": 3e7, "start_s": START, "deadline_s": START + 36 * HOUR}
    advice = advise(grids, actions=ACTIONS, policy=GreenConfig().policy, **keys)
    figure = draw_advice(advice)
    assert len(figure.axes) == 2 * zones
    texts = " ".join(_texts(figure))
    for i in range(zones):
        assert f"zone {i}" in texts
    for word in ("plain, at once", "plain, best start", "mpc", "assumed", "UTC", "g CO\N{SUBSCRIPT TWO}e/kWh"):
        assert word in texts
    assert ("the cleanest plan" in texts) == (zones > 1)
    figure.draw_without_rendering()
    assert all(
        label.get_window_extent().x1 <= figure.bbox.x1 for k in range(zones) for label in _labels(figure, 2 * k + 1)
    )


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_results_are_written_to_a_folder(scene: Scene, tmp_path: Path, suffix: str) -> None:
    written = write_results(tmp_path / "a" / "b", {"x": 1}, "a,b\n", [("made up/1", scene)], suffix)
    assert [path.name for path in written] == ["table.csv", "result.json", f"made-up-1{suffix}"]
    assert all(path.stat().st_size > 3 for path in written) and written[2].stat().st_size > 8_000


def test_what_cannot_be_written(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="choose another with --out"):
        write_results(tmp_path / "file" / "x", {}, "", [])
    with pytest.raises(ConfigError, match="format of a picture is 'bmp'; known: png, svg, pdf"):
        save(draw_scene(scene), tmp_path / "x.bmp")
    with pytest.raises(RunFolderError, match="cannot write the picture"):
        save(draw_scene(scene), tmp_path / "file" / "x.png")
    assert safe("../..") == "picture" and safe("a/b c") == "a-b-c"
