"""Thin adapters from the hooks of a framework to GreenSession; import them by name, greentrain.callbacks.NAME."""
