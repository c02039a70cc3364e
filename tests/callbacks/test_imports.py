"""The adapters exist without their frameworks, and say which extra brings them."""

import subprocess
import sys

import pytest

_BLOCK = "import sys; sys.modules.update(dict.fromkeys(['lightning', 'transformers', 'accelerate'])); "


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _BLOCK + code], capture_output=True, text=True, check=False)


def test_the_package_imports_without_any_framework() -> None:
    done = _run("import greentrain.callbacks; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate"])
def test_a_missing_framework_names_its_extra(name: str) -> None:
    done = _run(f"import greentrain.callbacks.{name}")
    assert done.returncode == 1
    assert "MissingExtraError" in done.stderr
    assert f"pip install 'greentrain-torch[{name}]'" in done.stderr
