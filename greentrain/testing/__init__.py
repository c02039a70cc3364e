"""Conformance suites and fakes for third-party meters, signals, policies, actuators and offload devices."""

from typing import TYPE_CHECKING, Any

__all__ = [
    "ActuatorContract",
    "MeterContract",
    "OffloadContract",
    "OffloadPolicyContract",
    "PolicyContract",
    "SignalContract",
]

if TYPE_CHECKING:
    from greentrain.testing.actuator_contract import ActuatorContract
    from greentrain.testing.meter_contract import MeterContract
    from greentrain.testing.offload_contract import OffloadContract
    from greentrain.testing.offload_policy_contract import OffloadPolicyContract
    from greentrain.testing.policy_contract import PolicyContract
    from greentrain.testing.signal_contract import SignalContract


def __getattr__(name: str) -> Any:
    if name in __all__:
        import re
        from importlib import import_module

        module = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
        return getattr(import_module(f"greentrain.testing.{module}"), name)
    raise AttributeError(f"module 'greentrain.testing' has no attribute {name!r}")
