"""The folder of a sweep: its plan, its parts, and what they come to when they are read together."""

from workbench.shards.folder import SweepFolder
from workbench.shards.plan import Plan, PlannedAnalysis, PlannedModel, Task
from workbench.shards.reading import SWEEP, read_sweep

__all__ = ["SWEEP", "Plan", "PlannedAnalysis", "PlannedModel", "SweepFolder", "Task", "read_sweep"]
