"""A device on another machine, over HTTP: ids there, scores back, the same bits.

On the machine with the card::

    with serve(Emulator(), port=8765) as server:
        print(server.url, server.token)

or ``python -m greentrain.fpga_backend.remote emulator --port 8765``. On the training machine::

    device = RemoteDevice("http://127.0.0.1:8765", token=token)

The server listens on its own machine only, unless told otherwise; the token goes in the clear, as everything does.
Between machines use ``ssh -L 8765:127.0.0.1:8765 machine`` or a proxy that speaks TLS.

* wire    bodies: safetensors and JSON, never pickle; an artifact is a stream
* server  what is answered, the models and who uses them, and limits
* client  RemoteDevice, its requests with patience, and the other machine's joules
"""
