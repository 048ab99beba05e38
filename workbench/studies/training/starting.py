"""Start a training from the weights of another run, for fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from workbench.core.files import sha256_file
from workbench.models.checkpoints import load_weights, read_checkpoint

HEAD = "head."
"""Prefix of the head's weights, which are drawn at random for the new task's classes."""


@dataclass(frozen=True)
class Start:
    """The checkpoint that a training starts from."""

    path: Path
    state: dict[str, Tensor]
    meta: dict[str, Any]

    @property
    def characters(self) -> str:
        """The characters of its tokens, if it has any."""
        return self.meta.get("preprocessing", {}).get("characters", "")

    def identity(self) -> dict[str, Any]:
        """Return the checkpoint's model, seed and hash."""
        return {
            "model": self.meta.get("name"),
            "seed": self.meta.get("seed"),
            "sha256": sha256_file(self.path),
        }

    def put_into(self, module: nn.Module) -> None:
        """Copy the weights, except the head's, into a module; InputError if they do not fit."""
        head_weights = {name: value for name, value in module.state_dict().items() if name.startswith(HEAD)}
        state = {name: value for name, value in self.state.items() if not name.startswith(HEAD)}
        load_weights(module, {**state, **head_weights}, origin=str(self.path))


def read_start(path: str | Path) -> Start:
    """Read a checkpoint of `workbench study train`; InputError for any other file."""
    path = Path(path).expanduser()
    return Start(path, *read_checkpoint(path))
