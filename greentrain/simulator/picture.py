"""A scene as a picture: the grid's intensity, what each policy chose, and the grams it had emitted by then.

Colours of pictures: a hue a gear, deeper the faster; lines that people with colour blindness can tell apart.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from greentrain.errors import RunFolderError
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array
from greentrain.report.svg import unit_of
from greentrain.simulator.scene import NOTHING, ORACLE, RAN, Course, Scene
from greentrain.utils.imports import try_import
from greentrain.utils.quantities import MASS, mass, signed
from greentrain.utils.validation import choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OFF_COLOUR: Final = "#e4e4e7"
GRID_COLOUR: Final = "#64748b"
_HUES: Final[Mapping[str, tuple[str, str]]] = {
    "fp8": ("#bfe8d2", "#0a6b3d"),
    "mxfp8": ("#c9ece9", "#0b6b66"),
    "nvfp4": ("#e2ecc0", "#55690b"),
    "bf16": ("#c7dbf5", "#1d4f91"),
    "fp16": ("#e3d3f4", "#5b2b8c"),
    "fp32": ("#f8dcb8", "#a2560a"),
}
"""Pale and deep tint of each gear."""
LINES: Final = (
    "#0a6b3d", "#d55e00", "#0072b2", "#cc79a7", "#b58900", "#56b4e9", "#7f3fbf", "#7b3f00", "#00897b", "#a3123f",
)  # fmt: skip
"""After Okabe and Ito's palette (https://jfly.uni-koeln.de/color/, 2026-11-21), darkened for thin lines."""


def row_colours(menu: Menu) -> list[str]:
    """Return the colour of each row of a menu: that of its gear, deeper the faster among those of the gear."""
    found = []
    for row, action in enumerate(menu.actions):
        if row == OFF or action is None:
            found.append(OFF_COLOUR)
            continue
        peers = [menu.tokens_per_s[k] for k, a in enumerate(menu.actions) if a is not None and a.gear == action.gear]
        low, high = float(min(peers)), float(max(peers))
        share = 1.0 if high <= low else (float(menu.tokens_per_s[row]) - low) / (high - low)
        pale, deep = _HUES.get(action.gear.value, _HUES["bf16"])
        found.append(_between(pale, deep, 0.15 + 0.85 * share))
    return found


def _between(first: str, second: str, share: float) -> str:
    pairs = [(int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


FORMATS: Final = ("png", "svg", "pdf")
_DPI: Final = 130
WIDTH_IN: Final = 10.5
_BOLD: Final = ("mpc", ORACLE, RAN)
_MOST_NAMED: Final = 7
"""Actions that the legend names; of more it names the slowest and the fastest of each gear."""


def check_pictures() -> None:
    """Check that pictures can be drawn.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with try_import("simulate") as imports:
        import matplotlib.figure  # noqa: F401
    imports.check()


def draw_scene(scene: Scene) -> "Figure":
    """Return the picture of a scene.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_pictures()
    from matplotlib.figure import Figure

    height_in = 0.26 * len(scene.courses) + 0.1
    figure = Figure(figsize=(WIDTH_IN, 6.3 + height_in), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [1.7, height_in, 3.4]})
    colours = line_colours([course.name for course in scene.courses], scene.against)
    intensity(top, scene.edges_unix_s, scene.g_per_kwh)
    action_legend(middle, scene.menu, strips(middle, scene.courses, scene.menu))
    _grams(bottom, scene, colours)
    for axes in (top, middle, bottom):
        axes.axvline(when(scene.deadline_unix_s), color="#b91c1c", linewidth=1.2, linestyle=(0, (4, 2)))
        clean(axes)
    top.annotate(
        "deadline",
        (when(scene.deadline_unix_s), 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color="#b91c1c",
        fontsize=8,
    )
    span_s = scene.edges_unix_s[-1] - scene.edges_unix_s[0]
    bottom.set_xlim(when(scene.edges_unix_s[0]), when(scene.edges_unix_s[-1] + 0.005 * span_s))
    dates(bottom)
    figure.suptitle(scene.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel("\n".join((scene.grid, *scene.notes)), x=0.01, ha="left", fontsize=7.5, color="#555555", wrap=True)
    return figure


def save(figure: "Figure", path: Path) -> Path:
    """Write a picture in the format of its suffix.

    Raises:
        ConfigError: Its suffix is none of FORMATS.
        RunFolderError: The file cannot be written.
    """
    check_format(path.suffix.removeprefix("."))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise RunFolderError(f"cannot write the picture {path}: {error.strerror or error}; choose another") from error
    return path


def check_format(name: str) -> None:
    """Check the format of a picture.

    Raises:
        ConfigError: It is none of FORMATS.
    """
    choice("the format of a picture", name.lower(), FORMATS)


def when(unix_s: float) -> Any:
    """Return a time as the axes take it."""
    return datetime.fromtimestamp(float(unix_s), UTC)


def times(unix_s: Any) -> list[Any]:
    """Return times as the axes take them."""
    return [when(t) for t in unix_s]


def dates(axes: "Axes") -> None:
    """Write UTC dates on the time axis."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC, minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlabel("time of the grid, UTC", fontsize=9)


def clean(axes: "Axes") -> None:
    """Take away what is not read."""
    axes.tick_params(labelsize=8, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def line_colours(names: Sequence[str], against: str) -> Mapping[str, str]:
    """Return the colour of each course: grey for what the others are held against, black for the oracle."""
    fixed = {against: "#8a8a8a", ORACLE: "#111111", "mpc": LINES[0], RAN: LINES[1]}
    free = iter(LINES[2:] * 4)
    return {name: fixed[name] if name in fixed else next(free) for name in names}


def legend_rows(menu: Menu, used: Sequence[int]) -> list[tuple[int, str]]:
    """Return which rows a legend names, and how: each one, or the slowest and the fastest of each gear."""
    names = menu.names()
    gear_of = [str(getattr(action, "gear", "")) for action in menu.actions]
    order = sorted(used, key=lambda row: (row != OFF, gear_of[row], float(menu.tokens_per_s[row])))
    if len(order) <= _MOST_NAMED:
        return [(row, names[row]) for row in order]
    found = [(OFF, names[OFF])] if OFF in order else []
    gears = dict.fromkeys(a.gear for row in order if (a := menu.actions[row]) is not None)
    for gear in gears:
        mine = [row for row in order if (a := menu.actions[row]) is not None and a.gear == gear]
        found += [(row, names[row]) for row in dict.fromkeys((mine[0], mine[len(mine) // 2], mine[-1]))]
    return found


def intensity(axes: "Axes", edges_unix_s: Array, g_per_kwh: Array, top_g_per_kwh: float | None = None) -> None:
    """Draw a grid's intensity.

    Args:
        axes: Axes that are drawn into.
        edges_unix_s: Edges of the intervals (s since the epoch, UTC), shape (h + 1,).
        g_per_kwh: Intensity of each interval (g/kWh), shape (h,).
        top_g_per_kwh: Highest value that is to fit (g/kWh); None: that of the grid.
    """
    edges = times(edges_unix_s)
    axes.stairs(g_per_kwh, edges, fill=True, color=GRID_COLOUR, alpha=0.18)
    axes.stairs(g_per_kwh, edges, color=GRID_COLOUR, linewidth=1.3, baseline=None)
    axes.set_ylim(0, (float(np.nanmax(g_per_kwh)) if top_g_per_kwh is None else top_g_per_kwh) * 1.08)
    axes.set_ylabel("grid\ng CO\N{SUBSCRIPT TWO}e/kWh", fontsize=9)


def strips(axes: "Axes", courses: Sequence[Course], menu: Menu) -> set[int]:
    """Draw what each course chose, one strip each from the top, and return the rows that occur."""
    colours = row_colours(menu)
    used: set[int] = set()
    for i, course in enumerate(courses):
        for t0_s, t1_s, row in stretches(course):
            axes.barh(i, when(t1_s) - when(t0_s), left=when(t0_s), height=0.72, color=colours[row], linewidth=0)
            used.add(row)
    axes.set_yticks(range(len(courses)), [course.name for course in courses])
    axes.set_ylim(len(courses) - 0.45, -0.55)
    axes.spines["left"].set_visible(False)
    return used


def action_legend(axes: "Axes", menu: Menu, used: set[int]) -> None:
    """Name the colours of actions to the right of some axes."""
    from matplotlib.patches import Patch

    colours = row_colours(menu)
    axes.legend(
        handles=[Patch(color=colours[row], label=name) for row, name in legend_rows(menu, sorted(used))],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.05),
        fontsize=8,
        frameon=False,
        title="action",
        title_fontsize=8,
        handlelength=1.2,
        alignment="left",
    )


def stretches(course: Course) -> list[tuple[float, float, int]]:
    """Return when each row was in use: start and end (s since the epoch, UTC) and row, equal neighbours as one."""
    found: list[tuple[float, float, int]] = []
    for i, row in enumerate(course.rows.tolist()):
        t0_s, t1_s = float(course.edges_unix_s[i]), float(course.edges_unix_s[i + 1])
        if row == NOTHING:
            continue
        if found and found[-1][2] == row and found[-1][1] == t0_s:
            found[-1] = (found[-1][0], t1_s, row)
        else:
            found.append((t0_s, t1_s, row))
    return found


def _grams(axes: "Axes", scene: Scene, colours: Mapping[str, str]) -> None:
    top_g = max(course.total_g for course in scene.courses)
    size_g, unit = unit_of(top_g, MASS)
    base = next(course for course in scene.courses if course.name == scene.against).total_g
    ends = [course.total_g / size_g for course in scene.courses]
    for course in sorted(scene.courses, key=lambda one: [one.name == name for name in (ORACLE, RAN, "mpc")]):
        axes.plot(
            times([*course.edges_unix_s, scene.edges_unix_s[-1]]),
            np.append(course.grams, course.total_g) / size_g,
            color=colours[course.name],
            linewidth=2.2 if course.name in _BOLD else 1.5,
            linestyle=(0, (3, 2)) if course.name == ORACLE else "-",
        )
    axes.set_ylim(0, top_g / size_g * 1.06)
    axes.set_ylabel(f"emitted so far\n{unit} CO\N{SUBSCRIPT TWO}e", fontsize=9)
    heights = apart(ends, 0.062 * top_g / size_g * 1.06)
    for course, end, height in zip(scene.courses, ends, heights, strict=True):
        share = 1.0 - course.total_g / base if base > 0 else 0.0
        saved = "" if course.name == scene.against else f" ({signed(-share, plus=True)})"
        axes.annotate(
            f"{course.name} {mass(course.total_g)}{saved}{', late' if course.late else ''}",
            (1.0, end),
            xycoords=("axes fraction", "data"),
            xytext=(1.025, height),
            textcoords=("axes fraction", "data"),
            color=colours[course.name],
            fontsize=8.5,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colours[course.name],
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 0,
                "relpos": (0.0, 0.5),
            },
        )


def apart(values: Sequence[float], distance: float) -> list[float]:
    """Return places for labels: in the order of the values, near them, and no two closer than a distance."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    groups: list[tuple[list[int], float]] = []
    for i in order:
        groups.append(([i], values[i]))
        while len(groups) > 1:
            (below, low), (above, high) = groups[-2], groups[-1]
            if high - low >= distance * (len(below) + len(above)) / 2:
                break
            together = below + above
            groups[-2:] = [(together, sum(values[k] for k in together) / len(together))]
    places = [0.0] * len(values)
    for members, centre in groups:
        for k, i in enumerate(members):
            places[i] = centre + (k - (len(members) - 1) / 2) * distance
    lowest = min(places, default=0.0)
    return [place + max(0.0, -lowest) for place in places]
