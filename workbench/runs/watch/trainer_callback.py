"""The watch as a callback of transformers' ``Trainer``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from workbench.runs.watch.callback import WatchCallback


class HuggingFaceCallback(WatchCallback, TrainerCallback):
    """``Trainer(…, callbacks=[HuggingFaceCallback(batch)])``; every argument as in `workbench.watch`.

    ``out`` is the folder ``watch`` in the Trainer's ``output_dir`` by default. ``submodule`` names the part of the
    model to watch, whose inputs ``batch`` then holds. ``watch`` holds the `Watch` once the training has begun.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._begin(kwargs["model"], args.output_dir, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._step(state.global_step):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._finish()
