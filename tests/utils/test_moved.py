"""Old paths."""

import importlib
import subprocess
import sys

import pytest

from greentrain.control import elastic
from greentrain.utils.moved import MOVED, new_path


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_warns_and_gives_the_module_of_today(old: str, new: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        assert importlib.import_module(old) is importlib.import_module(new)


def test_a_class_of_an_old_path_is_the_class_of_the_new_one() -> None:
    code = (
        "from greentrain.elastic import Share; from greentrain.control.elastic import Share as today;"
        " from greentrain.precision.graphs import *; print(Share is today)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert elastic.__name__ == "greentrain.control.elastic" == (elastic.__spec__.name if elastic.__spec__ else "")


def test_what_never_moved_is_not_found_elsewhere() -> None:
    assert new_path("greentrain.session") is None and new_path("greentrain.elastically") is None
    assert new_path("greentrain.precision.graphs") == "greentrain.control.precision.graphs"
    with pytest.raises(ModuleNotFoundError, match=r"greentrain\.nowhere"):
        importlib.import_module("greentrain.nowhere")
