"""Conformance suites and fakes for third-party meters, signals, policies, actuators and offload devices."""

from typing import TYPE_CHECKING, Any

_LAZY = {
    "ActuatorContract": "greentrain.testing.actuator_contract",
    "MeterContract": "greentrain.testing.meter_contract",
    "OffloadContract": "greentrain.testing.offload_contract",
    "OffloadPolicyContract": "greentrain.testing.offload_policy_contract",
    "PolicyContract": "greentrain.testing.policy_contract",
    "SignalContract": "greentrain.testing.signal_contract",
}

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
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'greentrain.testing' has no attribute {name!r}")
