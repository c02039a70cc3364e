"""Time and energy of 40 training steps under each power limit, as Zeus recorded them: shapes for benchmarks and tests.

The figures are from github.com/ml-energy/zeus, tests/profile_data, commit 75a8b93 (2026-08-20), Apache License 2.0,
Copyright the Zeus authors; rounded here, joules of several GPUs added.
"""

from dataclasses import dataclass
from typing import Final

STEPS: Final = 40
"""Steps of a recorded window."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One training under every limit of its card, from the highest down."""

    card: str
    model: str
    gpus: int
    limits_w: tuple[int, ...]
    """Of one GPU."""
    seconds: tuple[float, ...]
    """Of STEPS steps."""
    joules: tuple[float, ...]
    """Of all GPUs together."""

    def __str__(self) -> str:
        return f"{self.card} {self.model}" + (f" x{self.gpus}" if self.gpus > 1 else "")

    def stretched(self, limits_w: tuple[int, ...]) -> "Sweep":
        """Return the same shape on a card of other limits, between the recorded points on straight lines."""
        span, top = self.limits_w[0] - self.limits_w[-1], limits_w[0] - limits_w[-1]
        seconds: list[float] = []
        joules: list[float] = []
        for limit_w in limits_w:
            place = (limits_w[0] - limit_w) / top * span / (self.limits_w[0] - self.limits_w[1])
            i = min(int(place), len(self.limits_w) - 2)
            for values, into in ((self.seconds, seconds), (self.joules, joules)):
                into.append(values[i] + (place - i) * (values[i + 1] - values[i]))
        return Sweep(f"{self.card} shape", self.model, self.gpus, limits_w, tuple(seconds), tuple(joules))


A40_W: Final = tuple(range(300, 75, -25))
V100_W: Final = tuple(range(250, 75, -25))
SWEEPS: Final = (
    Sweep(
        "A40",
        "bert-base-uncased",
        1,
        A40_W,
        (10.55, 10.31, 11.25, 11.61, 12.5, 14.44, 17.39, 26.06, 45.14),
        (2924.5, 2758.5, 2780.3, 2599.3, 2481.4, 2523.7, 2601.8, 3240.5, 4516.5),
    ),
    Sweep(
        "A40",
        "resnet18",
        4,
        A40_W,
        (33.28, 33.01, 36.49, 36.66, 37.25, 36.4, 38.18, 36.33, 37.29),
        (16520.0, 16854.6, 17857.3, 17502.3, 17133.0, 16247.4, 16423.2, 15321.8, 14955.8),
    ),
    Sweep(
        "A40",
        "resnet18",
        1,
        A40_W,
        (9.217, 9.075, 10.41, 9.152, 10.38, 9.014, 10.62, 15.85, 27.21),
        (2053.7, 2051.0, 2079.3, 1836.0, 1805.3, 1535.4, 1596.6, 1962.9, 2803.9),
    ),
    Sweep(
        "A40",
        "resnet50",
        4,
        A40_W,
        (8.226, 8.025, 8.028, 8.313, 8.476, 8.266, 7.946, 8.141, 8.274),
        (4318.7, 4316.6, 4278.6, 4304.3, 4305.1, 4054.5, 3738.3, 3631.1, 3392.4),
    ),
    Sweep(
        "A40",
        "resnet50",
        1,
        A40_W,
        (24.01, 24.06, 24.16, 24.55, 25.19, 27.94, 36.85, 56.48, 69.36),
        (6224.9, 6122.3, 5915.6, 5500.0, 5017.5, 4867.5, 5512.2, 7071.9, 8033.6),
    ),
    Sweep(
        "A40",
        "shufflenetv2",
        1,
        A40_W,
        (1.679, 1.695, 1.711, 1.688, 1.696, 1.818, 1.785, 2.275, 4.41),
        (328.7, 328.7, 328.8, 336.6, 330.2, 306.2, 268.7, 286.2, 439.5),
    ),
    Sweep(
        "V100",
        "bert-base-uncased",
        1,
        V100_W,
        (13.37, 14.59, 14.38, 17.15, 16.22, 19.4, 26.67),
        (3019.5, 3081.5, 2714.8, 2883.1, 2401.0, 2400.3, 2636.6),
    ),
    Sweep(
        "V100",
        "resnet18",
        2,
        V100_W,
        (10.35, 10.48, 10.63, 10.6, 10.55, 11.05, 10.36),
        (2763.7, 2654.1, 2449.2, 2246.9, 2052.2, 1968.1, 1770.8),
    ),
    Sweep(
        "V100",
        "resnet18",
        1,
        V100_W,
        (9.991, 10.7, 10.24, 10.36, 10.18, 11.76, 15.58),
        (1900.3, 1832.9, 1672.2, 1551.8, 1449.7, 1449.2, 1532.3),
    ),
    Sweep(
        "V100",
        "resnet50",
        2,
        V100_W,
        (15.28, 15.59, 16.13, 16.66, 17.82, 20.86, 27.25),
        (6664.8, 6345.7, 5859.7, 5494.6, 5194.9, 5120.9, 5325.7),
    ),
    Sweep(
        "V100",
        "resnet50",
        1,
        V100_W,
        (26.67, 27.28, 28.31, 29.45, 32.41, 40.21, 53.87),
        (6065.0, 5815.5, 5394.7, 5059.2, 4830.3, 4969.6, 5327.1),
    ),
    Sweep(
        "V100",
        "shufflenetv2",
        1,
        V100_W,
        (1.794, 1.767, 1.759, 1.796, 1.831, 1.899, 1.992),
        (301.3, 301.1, 296.7, 292.3, 260.4, 227.9, 198.1),
    ),
)
