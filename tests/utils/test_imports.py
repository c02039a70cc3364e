import weakref

import pytest

from greentrain.errors import MissingExtraError
from greentrain.utils.imports import try_import


def test_an_import_that_fails_keeps_nothing_alive_that_its_callers_hold() -> None:
    class Held:
        pass

    def caller() -> tuple[weakref.ref[Held], try_import]:
        held = Held()
        with try_import("amd") as imports:
            try:
                raise KeyError("the library")
            except KeyError as error:
                raise ImportError("no such package") from error
        return weakref.ref(held), imports

    held, imports = caller()
    assert held() is None
    with pytest.raises(
        MissingExtraError, match=r"no such package\. Install it with: pip install 'greentrain-torch\[amd\]'"
    ):
        imports.check()
