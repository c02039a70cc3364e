"""What has never met its hardware says so, once, on rank 0, and never ends a training."""

import logging

import pytest

from greentrain.errors import GreenTrainWarning
from greentrain.utils import never_raise
from greentrain.utils.never_raise import warn_experimental


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(never_raise, "_UNPROVEN", set())


def _open() -> None:
    warn_experimental("the card", "it was read")


def test_a_feature_is_named_once_where_it_was_opened() -> None:
    with pytest.warns(GreenTrainWarning, match=r"the card is experimental: it was read; docs/status\.md") as told:
        _open()
        _open()
    assert len(told) == 1 and told[0].filename == __file__


def test_other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    warn_experimental("the card", "it was read")


def test_where_warnings_are_errors_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_experimental("the card", "it was read")
    assert "the card is experimental" in caplog.text
