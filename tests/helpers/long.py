"""Tests of a quarter of a minute and more whose subject shorter ones cover."""

import os

import pytest

LONG = pytest.mark.skipif(os.environ.get("GREENTRAIN_LONG") != "1", reason="long: GREENTRAIN_LONG=1 runs it")
