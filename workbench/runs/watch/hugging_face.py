"""The watch as a callback of transformers' ``Trainer``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from workbench.runs.watch.core import Watch, bare, watch


class HuggingFaceCallback(TrainerCallback):
    """``Trainer(…, callbacks=[HuggingFaceCallback(batch)])``; every argument as in `workbench.watch`.

    ``out`` is the folder ``watch`` in the Trainer's ``output_dir`` unless given. ``submodule`` names the part of the
    model to watch, which ``batch`` then is for. ``watch`` holds the `Watch` once the training has begun.
    """

    def __init__(
        self, batch: Any, *, out: str | os.PathLike[str] | None = None, submodule: str = "", **settings: Any
    ) -> None:
        self.batch, self.out, self.submodule, self.settings = batch, out, submodule, settings
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        out = self.out if self.out is not None else Path(args.output_dir) / "watch"
        module = bare(kwargs["model"]).get_submodule(self.submodule)
        self.watch = watch(module, self.batch, out=out, **self.settings)
        self.watch.step(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.step(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.finish()
