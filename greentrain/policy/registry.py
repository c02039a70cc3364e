"""From the name in a configuration to the policy."""

from greentrain.config.schema import PolicyConfig
from greentrain.errors import ConfigError
from greentrain.policy.baselines import LowestWindow, PriceFile, Spot, StaticSchedule, SyntheticPrices, Threshold
from greentrain.policy.carbongear import CarbonGear
from greentrain.policy.carbongear_printed import CAUTION, CarbonGearPrinted
from greentrain.policy.carl import Carl
from greentrain.policy.menu import Menu
from greentrain.policy.mpc import Mpc, MpcSwitching
from greentrain.policy.outlook import SchedulePolicy
from greentrain.types import Gear


def open_schedule(config: PolicyConfig, menu: Menu) -> SchedulePolicy:
    """Return the policy that a configuration names.

    Args:
        config: Section ``policy``.
        menu: Menu of the choices of the job.

    Raises:
        ConfigError: The menu lacks the gear of a static schedule, a file is wrong, or the policy does not plan.
        MissingExtraError: The policy needs an extra that is not installed.
    """
    match config.name:
        case "static":
            return StaticSchedule(menu, _row_of(config.gear, menu))
        case "threshold":
            return Threshold(menu)
        case "lowest_window":
            return LowestWindow(menu, config.window_h)
        case "mpc":
            switch_s, dwell_s, shift_s = config.switch_s, config.dwell_s, config.shift_s
            if config.switching == "dp" or (config.switching == "auto" and max(switch_s, dwell_s, shift_s) > 0):
                return MpcSwitching(menu, switch_s=switch_s, dwell_s=dwell_s, shift_s=shift_s)
            return Mpc(menu)
        case "carbongear":
            return CarbonGear(menu, switch_s=config.switch_s, epoch_s=config.decide_s)
        case "carbongear-printed":
            return CarbonGearPrinted(menu, seed=config.seed)
        case "carl":
            return Carl(menu)
        case "spot":
            prices = SyntheticPrices(config.seed) if config.prices_csv is None else PriceFile(config.prices_csv)
            return Spot(menu, prices)
    raise ConfigError(
        f"policy.name is {config.name!r}, which does not plan against a grid: see greentrain.control.gears"
    )


def caution(config: PolicyConfig) -> str | None:
    """Return what a real run should be told about its policy before it trains; None where there is nothing."""
    return CAUTION if config.name == "carbongear-printed" else None


def _row_of(gear: str | None, menu: Menu) -> int | None:
    if gear is None:
        return None
    row = menu.find(lambda action: action.gear is Gear(gear) and action.cap == 1.0)
    if row is None:
        known = sorted({str(action.gear) for action in menu.actions if action is not None})
        raise ConfigError(f"policy.gear is {gear!r}, but the action table only has {', '.join(known)} at full power")
    return row
