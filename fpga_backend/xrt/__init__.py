"""Cards through AMD's XRT. It was run against XRT 2.13 in no-op emulation and never on a card.

* device           the offload device
* worker_client    its worker as the training sees it, and a new worker where one died
* worker           what runs in the worker's process
* ipc              messages, memory and arrays between the two
* card, api        buffers and launches; XRT behind one seam, by its C library or its Python module
* xclbin, pci      what a design says of itself; cards on the bus, without XRT
* sensors          the card's joules
"""
