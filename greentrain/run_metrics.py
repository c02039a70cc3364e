"""Figures of a run for a logger, as of the last booking."""

from greentrain.runtime import ActiveRun


def metrics_of(run: ActiveRun) -> dict[str, float]:
    """Return ``green/energy_j`` and so on, of all ranks whose journals can be seen; what is not known is left out."""
    sums, entry = run.job_sums(), run.last_entry
    out: dict[str, float] = {}
    if run.ledger.totals.by_device or sums.energy_j:
        out["green/energy_j"] = sums.energy_j
    if sums.energy_j > sums.unpriced_j:
        out["green/emissions_g"] = sums.emissions_g
    if entry is not None and any(not device.missing_s for device in entry.devices.values()):
        out["green/power_w"] = sums.power_w
    if sums.energy_j > 0 and sums.tokens:
        out["green/tokens_per_j"] = sums.tokens / sums.energy_j
        if "green/emissions_g" in out:
            out["green/g_per_ktoken"] = 1000 * sums.emissions_g / sums.tokens
    elif sums.energy_j > 0 and sums.samples:
        out["green/samples_per_j"] = sums.samples / sums.energy_j
    if run.topology.world_size > 1:
        out["green/ranks"] = float(sums.ranks)
    return out
