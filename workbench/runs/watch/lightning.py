"""The watch as a callback of Lightning, under either of its names: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import MissingResource
from workbench.runs.watch.core import Watch, bare, watch

NAMES = ("lightning.pytorch", "pytorch_lightning")

if TYPE_CHECKING:
    from lightning.pytorch import Callback
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
        self, batch: Any, *, out: str | os.PathLike[str] | None = None, submodule: str = "", **settings: Any
    ) -> None:
        super().__init__()
        self.batch, self.out, self.submodule, self.settings = batch, out, submodule, settings
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
