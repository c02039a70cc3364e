"""Thin adapters from a framework's hooks to GreenSession, imported by name: greentrain.callbacks.lightning and so on."""
