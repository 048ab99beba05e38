"""Many models over thousands of inputs, in shards, on the cores of one machine or of a cluster."""

from workbench.sweeping.running import parse_duration, sweep
from workbench.sweeping.status import SweepStatus, sweep_status

__all__ = ["SweepStatus", "parse_duration", "sweep", "sweep_status"]
