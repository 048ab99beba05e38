"""The folder of a sweep: its plan, its parts, and what they come to when they are read together."""

from workbench.runs.sweep.folder import SweepFolder
from workbench.runs.sweep.plan import Plan, PlannedAnalysis, PlannedModel, Task
from workbench.runs.sweep.reading import SWEEP, read_sweep

__all__ = ["SWEEP", "Plan", "PlannedAnalysis", "PlannedModel", "SweepFolder", "Task", "read_sweep"]
