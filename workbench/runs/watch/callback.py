"""The watch as a callback of a trainer: its arguments and calls, which the callbacks of the libraries share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.runs.watch.core import Watch, bare, watch

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
        **settings: Any,
    ) -> None:
        super().__init__()
        inspect.signature(watch).bind(
            None, batch, out=out or "", **settings
        )  # a wrong name is a TypeError now
        self.batch, self.out, self.submodule, self.settings = batch, out, submodule, settings
        self.watch: Watch | None = None

    def _begin(self, model: Any, folder: str, step: int) -> None:
        out = self.out if self.out is not None else Path(folder) / "watch"
        module = bare(model).get_submodule(self.submodule)
        self.watch = watch(module, self.batch, out=out, **self.settings)
        self.watch.step(step)

    def _step(self, step: int) -> bool:
        """Step the watch; return whether an alert ends the training."""
        if self.watch is not None:
            self.watch.step(step)
        return self.watch is not None and self.watch.stopped

    def _finish(self) -> None:
        if self.watch is not None:
            self.watch.finish()


def _signature() -> inspect.Signature:
    """Return the callback's own arguments followed by those of `watch`, for help and editors."""
    signature, watched = inspect.signature(WatchCallback.__init__), inspect.signature(watch).parameters
    listed = [part for part in signature.parameters.values() if part.kind is not part.VAR_KEYWORD]
    return signature.replace(parameters=[*listed, *[*watched.values()][3:]])


WatchCallback.__init__.__signature__ = _signature()  # ty: ignore[missing-attribute] - Python documents it
