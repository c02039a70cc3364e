"""What changes a training while it runs: its plan, gears, power limits, width and end."""
