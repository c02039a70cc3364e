"""What NVML has to offer on a machine, for ``greentrain doctor``."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from greentrain.errors import MeterError
from greentrain.power.nvml import NvmlMeter
from greentrain.power.nvml_devices import NvmlGpu, list_gpus, open_nvml
from greentrain.types import Sensor


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSurvey:
    """Driver, GPUs and how each would be read."""

    problem: str = ""
    """Why there is nothing to read, with the remedy; empty if NVML works."""
    driver_version: str = ""
    gpus: Sequence[NvmlGpu] = ()
    """All GPUs of the node, also those that this process may not use."""
    sensors: Sequence[Sensor] = ()
    """The GPUs visible to this process and how each would be read."""


def survey_nvml(environ: Mapping[str, str] | None = None, *, probe: bool = True) -> NvmlSurvey:
    """Describe driver, GPUs and sensors. Never raises for what the machine lacks.

    Args:
        environ: Environment variables; None: those of the process.
        probe: Measure tick and read cost too (0.4 s).
    """
    try:
        nvml = open_nvml()
    except MeterError as error:
        return NvmlSurvey(problem=str(error))
    version, gpus = "", []
    try:
        with contextlib.suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetDriverVersion()
        with contextlib.suppress(nvml.NVMLError):
            gpus = [dataclasses.replace(gpu, handle=None) for gpu in list_gpus(nvml)]
        meter = NvmlMeter(environ)
        try:
            if probe:
                meter.probe()
            return NvmlSurvey(driver_version=version, gpus=gpus, sensors=meter.sensors)
        finally:
            meter.close()
    except MeterError as error:
        return NvmlSurvey(problem=str(error), driver_version=version, gpus=gpus)
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
