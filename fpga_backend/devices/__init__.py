"""Devices that need no card: torch, OpenVINO, null."""
