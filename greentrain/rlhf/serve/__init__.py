"""One HTTP server for the frozen passes, in the dialects that OpenRLHF, verl and TRL speak.

* :class:`greentrain.rlhf.serve.server.Server` runs it in a thread; ``greentrain serve`` runs it until a signal.
* ``coalescer`` makes device batches of what many clients ask for one by one.
* ``dialects`` are the routes; ``app`` puts them behind a guard that holds clients to the limits.
"""
