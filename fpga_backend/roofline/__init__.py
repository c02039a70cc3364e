"""How long a card would take, and what it would draw: a model, each constant with its source.

* quantity, card_spec, cards   numbers with their sources; what a card is; U55C and V80
* layout, widths, counts       products, bytes and launches of a program and a batch
* memory, exchange             what fits on a card, and what cards that share a model tell each other
* time, timeline, meter        seconds and joules; a queue in virtual time; the joules for the ledger
* shape                        a program from a model's configuration, without its weights
"""

from greentrain.fpga_backend.roofline.card_spec import CardSpec
from greentrain.fpga_backend.roofline.cards import CARDS, U55C, V80, assume, named
from greentrain.fpga_backend.roofline.latency import CardService, check_card, service
from greentrain.fpga_backend.roofline.layout import BatchLayout

Layout, Service = BatchLayout, CardService
__all__ = [
    "CARDS", "BatchLayout", "CardService", "CardSpec", "Layout", "Service", "U55C", "V80", "assume", "check_card", "named",
    "service",
]  # fmt: skip
