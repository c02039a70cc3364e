"""A device on another machine, over HTTP."""
