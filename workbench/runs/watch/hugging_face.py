"""The watch as a callback of transformers' ``Trainer``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from workbench.core.options import Numbers
from workbench.runs.watch.core import EVERY, MAX_COST, Watch, bare, watch

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.data.batches import Inputs


class HuggingFaceCallback(TrainerCallback):
    """``Trainer(…, callbacks=[HuggingFaceCallback(batch)])``; every argument as in `workbench.watch`.

    ``out`` is the folder ``watch`` in the Trainer's ``output_dir`` unless given. ``submodule`` names the part of the
    model to watch, which ``batch`` then is for. ``watch`` holds the `Watch` once the training has begun.
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
