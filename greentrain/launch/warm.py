"""Imported by the fork server before its first fork, by this name alone; see ``greentrain.launch.preload``."""

import os

from greentrain.launch.preload import load

load(os.environ)
