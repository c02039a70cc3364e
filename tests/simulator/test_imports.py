"""Simulating needs no framework, and no session."""

import subprocess
import sys

CODE = """
import sys
import greentrain.simulator.simulate, greentrain.policy.registry
banned = {"torch", "lightning", "transformers", "accelerate", "gymnasium", "matplotlib", "stable_baselines3", "scipy"}
print(sorted(name for name in sys.modules if name in banned or name.startswith("greentrain.session")))
"""


def test_a_simulation_imports_neither_torch_nor_the_session() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"
