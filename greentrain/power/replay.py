"""A recorded meter, played back in real time or on a test's clock.

The CSV file has a header and one row a sample, in the order of time for each device:

    t_s,device_uid,kind,name,energy_j,power_w[,provenance]
    0.0,GPU-5c1e,gpu,NVIDIA H100,0.0,,measured
    0.1,GPU-5c1e,gpu,NVIDIA H100,31.5,,measured

``t_s`` are seconds from any origin; ``kind`` is one of gpu, cpu, dram, fpga, node; a device has cumulative joules
(``energy_j``) or watts (``power_w``) all through. A row with neither is a reading that failed: until the next good one
the replay fails too. Either value column may be left out of the header if no device uses it.
"""

import csv
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from greentrain.errors import MeterError
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock

COLUMNS: Final = ("t_s", "device_uid", "kind", "name", "energy_j", "power_w", "provenance")
_T = TypeVar("_T", DeviceKind, Provenance)

REQUIRED: Final = ("t_s", "device_uid", "kind", "name")


class ReplayMeter:
    """Plays a recording from its first sample on, starting when the meter is opened.

    Args:
        csv_path: The recording.
        clock: Time.

    Raises:
        MeterError: The file cannot be read or a row is wrong; names file, line, value and remedy.
    """

    def __init__(self, csv_path: str | Path, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        path = Path(csv_path)
        self._tracks = _load(path)
        self._origin_s = min(track.t_s[0] for track in self._tracks)
        self._start_s = self._clock.monotonic_s()
        self._closed = False
        self._sensors = [track.sensor(path.name) for track in self._tracks]

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The recorded devices, in the order in which the file names them."""
        return self._sensors

    def read(self) -> Sequence[PowerSample]:
        """Return each device's recording at this time, interpolated between two samples."""
        now_s = self._clock.monotonic_s()
        if self._closed:
            return [PowerSample(device_uid=t.device.uid, t_s=now_s, note="the meter is closed") for t in self._tracks]
        at_s = now_s - self._start_s + self._origin_s
        return [track.at(at_s, now_s) for track in self._tracks]

    def close(self) -> None:
        """Stop. Idempotent."""
        self._closed = True


@dataclass(slots=True, kw_only=True)
class _Track:
    device: Device
    provenance: Provenance
    counter: bool | None = None
    t_s: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def sensor(self, file_name: str) -> Sensor:
        steps = sorted(b - a for a, b in zip(self.t_s, self.t_s[1:], strict=False))
        return Sensor(
            device=self.device,
            provenance=self.provenance,
            method=f"replay of {file_name}",
            period_s=steps[len(steps) // 2] if steps else 1.0,
        )

    def at(self, at_s: float, now_s: float) -> PowerSample:
        value, note = self._value(at_s)
        if self.counter:
            return PowerSample(device_uid=self.device.uid, t_s=now_s, energy_j=value, note=note)
        return PowerSample(device_uid=self.device.uid, t_s=now_s, power_w=value, note=note)

    def _value(self, at_s: float) -> tuple[float | None, str]:
        i = bisect_right(self.t_s, at_s) - 1
        if i < 0:
            return None, "the recording of this device has not begun"
        if i == len(self.t_s) - 1:
            if at_s - self.t_s[i] > 1e-6:
                return None, "the recording has ended"
            return self.values[i], ""
        low, high = self.values[i], self.values[i + 1]
        share = (at_s - self.t_s[i]) / (self.t_s[i + 1] - self.t_s[i])
        if low is None or (high is None and share > 0):
            return None, "the recorded reading failed"
        return (low if high is None else low + share * (high - low)), ""


def _load(path: Path) -> list[_Track]:
    tracks: dict[str, _Track] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
            if missing or not {"energy_j", "power_w"} & set(reader.fieldnames or ()):
                absent = ", ".join(missing) or "energy_j or power_w"
                raise MeterError(f"{path}:1: column {absent} is missing; expected {','.join(COLUMNS)}")
            for row in reader:
                _add(tracks, row, f"{path}:{reader.line_num}")
    except OSError as error:
        raise MeterError(f"cannot read the recording {path}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise MeterError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not tracks:
        raise MeterError(f"{path} has a header but no sample; record at least one row")
    return list(tracks.values())


def _add(tracks: dict[str, _Track], row: Mapping[str, str | None], where: str) -> None:
    t_s = _number(row, "t_s", where)
    uid = (row.get("device_uid") or "").strip()
    if t_s is None or not uid:
        raise MeterError(f"{where}: t_s and device_uid must be filled in")
    kind = _choice(DeviceKind, row.get("kind"), "kind", where)
    provenance = _choice(Provenance, row.get("provenance") or "measured", "provenance", where)
    name = (row.get("name") or uid).strip()
    device = Device(uid=uid, kind=kind, name=name)
    track = tracks.setdefault(uid, _Track(device=device, provenance=provenance))
    if track.device != device or track.provenance is not provenance:
        raise MeterError(f"{where}: kind, name or provenance of {uid!r} differs from its first row; keep them equal")
    energy_j, power_w = _number(row, "energy_j", where), _number(row, "power_w", where)
    if energy_j is not None and power_w is not None:
        raise MeterError(f"{where}: energy_j and power_w are both filled in; leave one of them empty")
    if power_w is not None and power_w < 0:
        raise MeterError(f"{where}: power_w is {power_w:g}; it must not be negative")
    if track.t_s and t_s <= track.t_s[-1]:
        raise MeterError(f"{where}: t_s is {t_s:g}, not after {track.t_s[-1]:g} of the row before; sort by time")
    value = energy_j if power_w is None else power_w
    if value is not None:
        counter = energy_j is not None
        if track.counter is not None and track.counter is not counter:
            raise MeterError(f"{where}: {uid!r} has energy_j in some rows and power_w in others; use one of them")
        track.counter = counter
        before = next((v for v in reversed(track.values) if v is not None), None)
        if counter and before is not None and value < before:
            raise MeterError(f"{where}: energy_j falls from {before:g} to {value:g}; a cumulative counter cannot")
    track.t_s.append(t_s)
    track.values.append(value)


def _number(row: Mapping[str, str | None], key: str, where: str) -> float | None:
    text = (row.get(key) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise MeterError(f"{where}: {key} is {text!r}; expected a finite number")
    return value


def _choice(options: type[_T], text: str | None, key: str, where: str) -> _T:
    try:
        return options((text or "").strip())
    except ValueError:
        known = ", ".join(options)
        raise MeterError(f"{where}: {key} is {text!r}; known: {known}") from None
