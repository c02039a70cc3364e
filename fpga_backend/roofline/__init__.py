"""How long a card would take, and what it would draw: a model, each constant with its source.

* cards      what a card is, and the U55C and V80 of ``utils/devices.toml``
* counts     products, bytes and launches of a program and a batch, and what fits into a card's memory
* latency    seconds and joules of a batch; the joules of an emulated card for the ledger
* shape      a program from a model's configuration, without its weights
"""
