"""A training that begins with the weights of another: pre-trained, then fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from workbench.core.files import sha256_file
from workbench.models.checkpoints import load_weights, read_checkpoint

HEAD = "head."
"""Weights of this beginning are drawn anew: those of the new task's classes."""


@dataclass(frozen=True)
class Start:
    """The checkpoint that a training begins with."""

    path: Path
    state: dict[str, Tensor]
    meta: dict[str, Any]

    @property
    def characters(self) -> str:
        """What its tokens are, where they are characters."""
        return self.meta.get("preprocessing", {}).get("characters", "")

    def identity(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {
            "model": self.meta.get("name"),
            "seed": self.meta.get("seed"),
            "sha256": sha256_file(self.path),
        }

    def put_into(self, module: nn.Module) -> None:
        """Its weights in the place of the module's, but for the head; InputError where they do not fit."""
        own = {name: value for name, value in module.state_dict().items() if name.startswith(HEAD)}
        state = {name: value for name, value in self.state.items() if not name.startswith(HEAD)}
        load_weights(module, {**state, **own}, origin=str(self.path))


def read_start(path: str | Path) -> Start:
    """A checkpoint of `workbench study train`; InputError for anything else."""
    return Start(Path(path), *read_checkpoint(path))
