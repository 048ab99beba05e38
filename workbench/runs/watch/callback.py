"""The watch as a callback of a trainer: its arguments and calls, which the callbacks of the libraries share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.options import Numbers
from workbench.runs.watch.core import EVERY, MAX_COST, Watch, bare, watch

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.data.batches import Inputs


class WatchCallback:
    """Begin, step and finish a `Watch` as a trainer calls for it; it is None in processes other than the first."""

    def __init__(
        self,
        batch: Tensor | Mapping[str, Tensor] | Inputs,
        *,
        out: str | os.PathLike[str] | None = None,
        submodule: str = "",
        every: int = EVERY,
        analyses: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
        layers: Numbers = None,
        seed: int = 0,
        max_cost: float | None = MAX_COST,
        name: str | None = None,
        restart: bool = False,
    ) -> None:
        super().__init__()
        self.batch, self.out, self.submodule = batch, out, submodule
        self.settings: dict[str, Any] = {
            "every": every,
            "analyses": analyses,
            "layers": layers,
            "seed": seed,
            "max_cost": max_cost,
            "name": name,
            "restart": restart,
        }
        self.watch: Watch | None = None

    def _begin(self, model: Any, folder: str, step: int) -> None:
        out = self.out if self.out is not None else Path(folder) / "watch"
        module = bare(model).get_submodule(self.submodule)
        self.watch = watch(module, self.batch, out=out, **self.settings)
        self.watch.step(step)

    def _step(self, step: int) -> None:
        if self.watch is not None:
            self.watch.step(step)

    def _finish(self) -> None:
        if self.watch is not None:
            self.watch.finish()
