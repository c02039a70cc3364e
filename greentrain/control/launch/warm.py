"""Imported by the fork server before its first fork, by this name alone; see ``greentrain.control.launch.preload``."""

import os

from greentrain.control.launch.preload import load

load(os.environ)
