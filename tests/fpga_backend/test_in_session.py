"""A device's joules enter the ledger of a run, labelled as what they are."""

from pathlib import Path

from greentrain import GreenSession
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.power.detect import NullMeter
from greentrain.testing.offload_models import encoder, sequences


def test_a_devices_joules_are_booked_under_its_own_name(tmp_path: Path) -> None:
    artifact = encoder()
    device = Emulator(assume(U55C))
    try:
        handle = device.load(artifact)
        config = {"run": {"dir": str(tmp_path), "live": False}, "carbon": {"signal": "constant", "g_per_kwh": 100}}
        green = GreenSession(config, meter=NullMeter(), extra_meters=[device.meter])
        before_j = device.energy().energy_j
        with green:
            for _ in range(3):
                device.submit(handle, sequences(artifact)).result(30)
                green.step(tokens=40)
        after_j = device.energy().energy_j
        assert before_j is not None
        assert after_j is not None
        totals = green.totals()
        booked = {name: energy for name, energy in totals.by_device.items() if "emulat" in name.lower()}
        assert len(booked) == 1
        assert 0 < totals.energy_j <= after_j - before_j
        assert set(totals.by_provenance) == {"modelled"}
        assert device.submit(handle, sequences(artifact)).result(30), "the run closed a device that is not its own"
    finally:
        device.close()
