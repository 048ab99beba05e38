"""The watch as a callback of Lightning, under either of its names: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from workbench.core.errors import MissingResource
from workbench.runs.watch.callback import WatchCallback

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


class LightningCallback(WatchCallback, Callback):
    """``Trainer(callbacks=[LightningCallback(batch)])``; every argument as in `workbench.watch`.

    ``out`` is the folder ``watch`` in the Trainer's ``default_root_dir`` by default. ``submodule`` names the part of
    the LightningModule to watch, whose inputs ``batch`` then holds ("" for the LightningModule itself, by its
    ``forward``). ``watch`` holds the `Watch` once the training has begun.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self._begin(pl_module, trainer.default_root_dir, trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        # Counts steps of the optimiser: batches whose gradients are only gathered leave it as it was.
        if self._step(trainer.global_step):
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._finish()
