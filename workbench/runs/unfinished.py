"""Results of single layers, kept until the whole result is: an interrupted run resumes after them."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.analyses.layer import Layer
from workbench.core.errors import MissingResource
from workbench.core.files import atomic_write, sha256_bytes
from workbench.core.null_distributions import Null
from workbench.frames.measurement import Measurement
from workbench.frames.metric import METRICS

SUFFIX = ".layer"
WORTH = 5.0
"""Shortest time in seconds of a layer that is kept; a faster one is measured again."""


@dataclass(frozen=True)
class LayerResult:
    """One layer of one batch: measurements, counts by message, measured heads and their total number."""

    measurements: Sequence[Measurement]
    counts: Mapping[str, Sequence[int]]
    heads: Sequence[int]
    total_heads: int


class Unfinished:
    """The layers of a run, in files beside its result: a SHA-256, then what `torch.save` writes."""

    def __init__(self, result: Path) -> None:
        self.result = result

    def find(self, layer: Layer) -> LayerResult | None:
        """Return a layer's result; None where none was kept or its file is damaged."""
        try:
            content = self._path(layer).read_bytes()
            if sha256_bytes(content[64:]).encode() != content[:64]:
                return None
            saved = torch.load(io.BytesIO(content[64:]), weights_only=True)
            return LayerResult(
                **saved | {"measurements": [_measurement(each) for each in saved["measurements"]]}
            )
        except Exception:  # however it is damaged, the layer is measured again
            return None

    def keep(self, layer: Layer, result: LayerResult, seconds: float) -> None:
        """Keep a layer that took at least `WORTH` seconds; a full disk costs the copy, not the result."""
        if seconds < WORTH:
            return
        buffer = io.BytesIO()
        torch.save(vars(result) | {"measurements": [_plain(each) for each in result.measurements]}, buffer)
        content = buffer.getvalue()
        with contextlib.suppress(MissingResource):
            atomic_write(self._path(layer), sha256_bytes(content).encode() + content)

    def remove(self) -> None:
        """Remove all layers: the whole result is there."""
        for path in self.result.parent.glob(f"{self.result.stem}-*{SUFFIX}"):
            path.unlink(missing_ok=True)

    def _path(self, layer: Layer) -> Path:
        name = sha256_bytes(json.dumps([list(layer.ids), layer.step, layer.index]).encode())[:32]
        return self.result.with_name(f"{self.result.stem}-{name}{SUFFIX}")


def _plain(measurement: Measurement) -> dict[str, Any]:
    """A measurement in types that `torch.load` reads without running code."""
    null = measurement.null
    plain = vars(measurement) | {"metric": measurement.name, "null": None if null is None else tuple(null)}
    return {name: _copied(value) for name, value in plain.items()}


def _copied(value: Any) -> Any:
    """Tensors on the CPU, without the memory that they are a view of; containers as dict and tuple."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    return tuple(map(_copied, value)) if isinstance(value, tuple) else value


def _measurement(plain: Mapping[str, Any]) -> Measurement:
    null = None if plain["null"] is None else Null(*plain["null"])
    fields: dict[str, Any] = {**plain, "metric": METRICS[plain["metric"]], "null": null}
    return Measurement(**fields)
