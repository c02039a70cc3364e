"""The emulator as a device: exact results on the CPU and, where a card is named, its modelled time and energy."""

import threading
from dataclasses import replace
from typing import Final

import torch

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact, as_artifact
from greentrain.fpga_backend.batch import Batch, Result, pack
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import ON_THE_CPU, InProcess, Runner, own_uid
from greentrain.fpga_backend.emulator.arithmetic import exact_product, int_mm
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.roofline.cards import CardSpec
from greentrain.fpga_backend.roofline.cycles import KERNEL_CARD
from greentrain.fpga_backend.roofline.latency import ModelledMeter, check_card, service
from greentrain.types import Provenance

DEPTH: Final = 8
"""Batches that may wait: a few micro-batches of finished rollouts."""


class Emulator(InProcess):
    """An OffloadDevice that gives the contract's bits without a card.

    Args:
        card: A card whose time and energy are modelled, a U55C's on the kernels of ``hls/``: ``Result.run_s`` and the
            meter are the model's, and say so.
            These joules are of a card that is not there: its meter enters a ledger only where the user puts it in.
            None: ``run_s`` is what the CPU took, and there is no meter.
        real_time: True, with ``card``: an answer comes no sooner than the modelled card's would.
        compiled: True: stages go through ``torch.compile``; the bits are the same.
        depth: Number of batches that may wait.

    Raises:
        ConfigError: The card lacks a constant.
    """

    def __init__(
        self,
        card: CardSpec | None = None,
        *,
        real_time: bool = False,
        compiled: bool = False,
        depth: int = DEPTH,
    ) -> None:
        if card is not None:
            if not isinstance(card, CardSpec):
                raise ConfigError(
                    f"card={card!r} is no CardSpec: take one of fpga_backend.roofline.cards, assume(named('U55C'))"
                )
            check_card(card)
        uid = own_uid("emulator" if card is None else f"emulator-{card.name}")
        self._card = card
        self._real_time = real_time
        self._closing = threading.Event()
        self._held: dict[Handle, int] = {}
        info = DeviceInfo(
            uid=uid,
            name="emulator" if card is None else f"emulator of a {card.name}",
            available=True,
            exact=True,
            simulated=card is not None,
            memory_bytes=None if card is None else int(card.value("memory_bytes")),
        )

        def opened(artifact: Artifact) -> Engine:
            return Engine(artifact, compiled=compiled)

        super().__init__(uid, depth, opened, info=info, note=ON_THE_CPU)
        self._modelled = None if card is None else ModelledMeter(uid, card)
        self._meter = self._modelled or self._meter

    def probe(self) -> DeviceInfo:
        """Say what is emulated, and by which products."""
        with torch.device("cpu"):  # whatever the caller's default device is
            products = "torch._int_mm" if exact_product() is int_mm else "binary32 in pieces"
        return replace(super().probe(), details={"products": products})

    def load(self, artifact: Artifact, replacing: Handle | None = None) -> Handle:
        """Open a model.

        Raises:
            ArtifactError: Not of the contract's precision.
            DeviceError: The modelled card has no room, or ``replacing`` is unknown.
        """
        self._room(as_artifact(artifact), replacing)
        handle = super().load(artifact, replacing)
        if replacing is not None:
            self._held.pop(replacing, None)
        self._held[handle] = artifact.nbytes
        return handle

    def energy(self) -> EnergyReading:
        """Return the modelled card's joules, or nothing: the CPU's are in the ledger."""
        if self._modelled is None:
            return super().energy()
        note = f"roofline model of a {self._card.name if self._card else ''} that is not there"
        return EnergyReading(energy_j=self._modelled.energy_j, provenance=Provenance.MODELLED, note=note)

    def close(self) -> None:
        """Fail what waits and let go of the models. Idempotent."""
        self._closing.set()
        super().close()
        self._held.clear()
        self._meter.close()

    def _room(self, artifact: Artifact, replacing: Handle | None) -> None:
        if self._card is None:
            return
        room = int(self._card.value("memory_bytes"))
        held = sum(nbytes for handle, nbytes in list(self._held.items()) if handle != replacing)
        if held + artifact.nbytes > room:
            raise DeviceError(
                f"the model takes {artifact.nbytes / 1e9:.2f} GB; {self._card.name} has {room / 1e9:.2f} GB of which "
                f"{held / 1e9:.2f} GB are taken: use fewer models, or smaller ones"
            )

    def _run(self, model: Runner, batch: Batch) -> Result:
        """Compute a batch; its time is the modelled card's, whose joules are booked; wait for it in real time."""
        result = super()._run(model, batch)
        if self._card is None or self._modelled is None:
            return result
        ours = self._card.name == KERNEL_CARD and model.program.precision == "w8a8"
        modelled = service(model.program, pack(batch, model.program), self._card, kernels=ours)
        if self._real_time:
            self._closing.wait(max(0.0, modelled.run_s - result.run_s))
        self._modelled.add(modelled)
        return replace(result, run_s=modelled.run_s, modelled=True)
