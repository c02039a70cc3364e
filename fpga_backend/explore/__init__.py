"""The design space of a model on cards."""
