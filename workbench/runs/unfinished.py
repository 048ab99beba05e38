"""What was measured of single layers, kept until the whole result is: a run that was interrupted goes on after them."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from workbench.analyses.layer import Layer
from workbench.core.errors import MissingResource
from workbench.core.files import atomic_write, sha256_bytes
from workbench.core.null_distributions import Null
from workbench.frames.measurement import Measurement
from workbench.frames.metrics import METRICS

WORTH = 5.0
"""Seconds from which a layer is kept: less is sooner measured again."""
STALE = 7 * 24 * 3600.0
"""Seconds after which nobody goes on with what was kept."""
_KEY = "workbench"


@dataclass(frozen=True)
class LayerResult:
    """What an analysis found in one layer of one batch: its measurements, counts by message, heads of how many."""

    measurements: Sequence[Measurement]
    counts: Mapping[str, Sequence[int]]
    heads: Sequence[int]
    total_heads: int


class Unfinished:
    """A folder of layer results, of a run that is known by the ``key`` of its whole result."""

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / key

    def find(self, layer: Layer) -> LayerResult | None:
        """What was kept of a layer; None where nothing was, or its file is damaged (it is then written anew)."""
        place = self._place(layer)
        if not place.is_file():
            return None
        try:
            with safe_open(place, "pt") as file:
                about = json.loads(file.metadata()[_KEY])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            if about["content"] != _content(tensors):
                return None
            measurements = [
                _read(str(number), one, tensors) for number, one in enumerate(about["measurements"])
            ]
            return LayerResult(measurements, about["counts"], about["heads"], about["total_heads"])
        except Exception:  # however it is damaged, it is measured again
            return None

    def keep(self, layer: Layer, found: LayerResult, seconds: float) -> None:
        """Keep a layer that took so long, where that is worth it; a full disk costs the copy, not the result."""
        if seconds < WORTH:
            return
        tensors, measurements = {}, []
        for number, measurement in enumerate(found.measurements):
            tensors |= dict(_tensors(str(number), measurement))
            measurements.append(
                {
                    "metric": measurement.name,
                    "axes": list(measurement.axes),
                    "columns": measurement.columns,
                    "form": measurement.form,
                }
            )
        about = {
            "measurements": measurements,
            "counts": found.counts,
            "heads": found.heads,
            "total_heads": found.total_heads,
            "content": _content(tensors),
        }
        if not self.path.is_dir():
            self._forget_stale()
        with contextlib.suppress(MissingResource, TypeError):  # or a column that JSON does not know
            atomic_write(self._place(layer), save(tensors, {_KEY: json.dumps(about)}))

    def done(self) -> None:
        """The whole result is there: nothing goes on from here."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _place(self, layer: Layer) -> Path:
        said = json.dumps([list(layer.ids), layer.step, layer.index])
        return self.path / f"{sha256_bytes(said.encode())[:32]}.safetensors"

    def _forget_stale(self) -> None:
        for other in self.path.parent.glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - other.stat().st_mtime > STALE:
                    shutil.rmtree(other)


def _tensors(name: str, measurement: Measurement) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a measurement by name, on the CPU."""
    held = {"values": measurement.values}
    held |= {f"draws.{null}": draws for null, draws in measurement.null_samples.items()}
    if measurement.null is not None:
        held |= {f"null.{part}": tensor for part, tensor in measurement.null._asdict().items()}
    for part, tensor in held.items():
        # a copy: tensors that share memory cannot be written together
        yield f"{name}.{part}", tensor.detach().cpu().clone().contiguous()


def _read(name: str, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Measurement:
    """The measurement whose tensors `_tensors` named."""
    own = {key.partition(".")[2]: tensor for key, tensor in tensors.items() if key.partition(".")[0] == name}
    null = Null(*(own[f"null.{part}"] for part in Null._fields)) if "null.mean" in own else None
    draws = {key.removeprefix("draws."): tensor for key, tensor in own.items() if key.startswith("draws.")}
    return Measurement(
        METRICS[about["metric"]],
        own["values"],
        tuple(about["axes"]),
        null,
        about["columns"],
        draws,
        about["form"],
    )


def _content(tensors: Mapping[str, Tensor]) -> str:
    """Hash of tensors by their names."""
    digests = [f"{name} {sha256_bytes(save({'x': tensors[name]}))}" for name in sorted(tensors)]
    return sha256_bytes("\n".join(digests).encode())
