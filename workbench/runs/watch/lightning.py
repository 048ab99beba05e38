"""The watch as a callback of Lightning, under either of its names: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import MissingResource
from workbench.core.options import Numbers
from workbench.runs.watch.core import EVERY, MAX_COST, Watch, bare, watch

NAMES = ("lightning.pytorch", "pytorch_lightning")

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from torch import Tensor

    from workbench.data.batches import Inputs
else:
    # Two packages with the same classes; the one that the user's own code has imported, else one that is there.
    for _name in sorted(NAMES, key=lambda name: name not in sys.modules):
        try:
            Callback = importlib.import_module(_name).Callback
        except ModuleNotFoundError:
            continue
        break
    else:
        raise MissingResource("Lightning is not installed; pip install lightning")


class LightningCallback(Callback):
    """``Trainer(callbacks=[LightningCallback(batch)])``; every argument as in `workbench.watch`.

    ``out`` is the folder ``watch`` in the Trainer's ``default_root_dir`` unless given. ``submodule`` names the part of
    the LightningModule to watch, which ``batch`` then is for ("" for the LightningModule itself, by its ``forward``).
    ``watch`` holds the `Watch` once the training has begun.
    """

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

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        out = self.out if self.out is not None else Path(trainer.default_root_dir) / "watch"
        module = bare(pl_module).get_submodule(self.submodule)
        self.watch = watch(module, self.batch, out=out, **self.settings)
        self.watch.step(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        # Counts steps of the optimiser: batches whose gradients are only gathered leave it as it was.
        if self.watch is not None:
            self.watch.step(trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is not None:
            self.watch.finish()
