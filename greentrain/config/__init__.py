"""The one schema of green.yaml: loading and checking it, its JSON Schema and its reference page."""

from greentrain.config.schema import CarbonConfig as CarbonConfig
from greentrain.config.schema import GreenConfig as GreenConfig
from greentrain.config.schema import PrecisionConfig as PrecisionConfig
