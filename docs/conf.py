"""How Sphinx builds this site: Markdown by MyST, reference from docstrings, nothing from the network."""

import dataclasses
import re
import sys
import typing
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import MockFinder  # type: ignore[attr-defined]

import greentrain
from greentrain.config import schema

project = "GreenTrain"
version = release = greentrain.__version__
copyright = "the GreenTrain authors, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

# Not by autodoc_mock_imports, which ends too early: signatures of hooks that are inherited would import the framework.
sys.meta_path.insert(0, MockFinder(["accelerate", "lightning", "ray", "transformers"]))
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
nitpick_ignore = [("py:func", "greentrain.fpga_backend.compiler.compiling.sync"), ("py:mod", "xclbin")]
nitpick_ignore_regex = [("py:class", ".*")]  # types in signatures, which are not all described here
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"GreenTrain {release}"
html_copy_source = False
html_show_sphinx = False

_OUTSIDE = re.compile(r"\]\(((?:\.\./)+(?!docs/)[^)#]+)(?:#[^)]*)?\)")


def _link_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to files of the repository, and to folders by their README, open the file as it is."""

    def path(found: re.Match[str]) -> str:
        target = found[1].rstrip("/")
        folder = (Path(app.srcdir, docname).parent / target).is_dir()
        return f"](path:{target}/README.md)" if folder else f"](path:{target})"

    source[0] = _OUTSIDE.sub(path, source[0])


def _drop_missing(app: Sphinx, docname: str, source: list[str]) -> None:
    """Leave entries such as ``fleet*`` out of the contents until there is such a page."""
    if docname == "index":
        lines = source[0].splitlines()
        here = [line for line in lines if not line.endswith("*") or any(Path(app.srcdir).glob(f"{line}.md"))]
        source[0] = "\n".join(here)


def _drop_module_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Leave out what a module says of its files: the pages have words of their own."""
    if what == "module":
        lines.clear()


_AS_WRITTEN: dict[str, list[str]] = {}


def _keep_attribute(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep what an attribute says before napoleon takes the words in front of a colon for a type."""
    if what in ("attribute", "data", "property"):
        _AS_WRITTEN[name] = list(lines)


def _restore_attribute(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Put it back after napoleon."""
    if name in _AS_WRITTEN:
        lines[:] = _AS_WRITTEN.pop(name)


def _show_plain_types() -> None:
    """Show fields of the configuration with their types: their bounds and words are on a page of their own."""
    for section in vars(schema).values():
        if dataclasses.is_dataclass(section) and isinstance(section, type):
            for owner in (section, section.__init__):
                owner.__annotations__ = typing.get_type_hints(owner)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    _show_plain_types()
    app.connect("source-read", _link_files)
    app.connect("source-read", _drop_missing)
    app.connect("autodoc-process-docstring", _drop_module_docstring)
    app.connect("autodoc-process-docstring", _keep_attribute, priority=100)
    app.connect("autodoc-process-docstring", _restore_attribute, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
