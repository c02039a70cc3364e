"""Frozen transformer passes on devices beside the GPU: compiled once, the same bits on each exact device.

    artifact = compile(model, max_tokens=512)      # INT8, by torch.export
    device = Emulator()
    handle = device.load(artifact)
    future = device.submit(handle, Batch.of([ids, more_ids]))
    future.result().scores

* contract, tables    the integer contract (``CONTRACT.md``)
* program, artifact   a compiled model, in memory and on disk
* batch               sequences, and the rows they become
* device, card        what a device is, and how a card looks to the host
"""
