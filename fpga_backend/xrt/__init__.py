"""Cards through AMD's XRT. It was run against XRT 2.13 in no-op emulation and never on a card.

* device, keeper       the offload device; its worker's state, and a new worker where one died
* process, worker      the worker seen from the training, and what it does
* wire, shared, transfer  messages, memory and arrays between the two
* card, silicon        a card's buffers and launches; the kernels by g++ where an emulation has none
* api, ctypes_api, pyxrt_api  XRT behind one seam, by its C library or its Python module
* xclbin, axlf, pci    what a design says of itself; cards on the bus, without XRT
* sensors, hwmon, electrical, meters  the card's joules
* parallel, parts      several cards, each with the whole model
* tensor_parallel, split  several cards, each with a part of it
"""
