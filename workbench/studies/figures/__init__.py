"""Figures of records: training, evaluation, what operators cost, verdicts."""

import lazy_loader

from workbench.studies import study_tables  # noqa: F401 (how these frames are printed)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
