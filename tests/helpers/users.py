"""Another user, for tests that run as root."""

import os

import pytest

STRANGER = 12345
"""A user without a name; only root can give files away."""
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
