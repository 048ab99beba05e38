"""What a captured run gives: its layers, and their file.

In a file a tensor holds a site of all layers, (layer, batch, …), where the layers are alike, else there is one tensor
per layer, ``layers.3.q``. The metadata is JSON: layers, tokens, and which model and inputs it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench._version import __version__
from workbench.captures.qkv import check_values, layers_of
from workbench.captures.records import DEFAULT_SITES, SITES, LayerRecord, TokenInfo, WindowOrigin
from workbench.captures.storage import read_tensors, write_tensors
from workbench.core.errors import InputError
from workbench.core.options import ranges
from workbench.core.renamed import new_keys, new_name

FORMAT_VERSION = 2  # 2 has new names of sites; files of format 1 are read


class LayerNotCaptured(InputError, IndexError):
    """A layer that the capture does not hold."""


@dataclass
class Capture:
    """The attention calls of one forward pass, in call order.

    ``capture[3]`` is layer 3 whichever layers were asked for; ``capture[-1]`` the last one captured;
    iteration goes in layer order. ``result`` is the model's own output; ``not_run`` names attention modules
    that the forward pass never entered (a cross-attention without an encoder, say);
    ``notes`` say what was kept unchecked.
    """

    layers: list[LayerRecord]
    sites: tuple[str, ...] = DEFAULT_SITES
    tokens: TokenInfo | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    not_run: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    identity: Callable[[], dict[str, Any]] = field(default=dict, repr=False)

    @property
    def model(self) -> dict[str, Any]:
        """Which model this was: spec, checkpoint, fingerprint (computed when first asked for)."""
        return self.identity()

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerRecord]:
        return iter(self.layers)

    def __getitem__(self, layer: int) -> LayerRecord:
        if -len(self.layers) <= layer < 0:
            return self.layers[layer]
        for record in self.layers:
            if record.index == layer:
                return record
        held = [record.index for record in self.layers]
        raise LayerNotCaptured(f"layer {layer} is not in this capture; it holds layers {ranges(held)}")

    def stack(self, site: str) -> Tensor:
        """One site of all layers, (layer, batch, …).

        Raises InputError naming layer and axis where the layers are not alike.
        """
        values = []
        for record in self.layers:
            value = record.extra.get(site) if site not in SITES else getattr(record, site)
            if value is None:
                raise InputError(f"layer {record.index} ({record.path}) holds no {site!r}")
            values.append(value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64))
        for record, value in zip(self.layers, values, strict=True):
            if value.shape != values[0].shape:
                first = self.layers[0]
                raise InputError(
                    f"{site!r} differs between layers: {tuple(values[0].shape)} in layer {first.index} "
                    f"({first.path}), {tuple(value.shape)} in layer {record.index} ({record.path}); "
                    "read the layers one by one"
                )
        return torch.stack(values)

    def save(self, path: str | Path) -> Path:
        """Write a ``.safetensors`` (any dtype) or ``.npz`` file that ``Capture.load`` and ``--qkv`` read.

        The file appears whole or not at all. Raises MissingResource naming the path where the folder cannot be
        written or is full, InputError for another ending, and for bfloat16 in ``.npz``, which has no such type.
        """
        return write_tensors(path, _tensors(self), _metadata(self))

    @classmethod
    def load(cls, path: str | Path) -> Capture:
        """Read what ``save`` wrote, or anyone's file of q, k, v (see `read_qkv`)."""
        return read_qkv(path)

    def __repr__(self) -> str:
        lines = [f"<Capture of {len(self.layers)} layers, sites {', '.join(self.sites)}>"]
        return "\n".join(lines + [f"  {record!r}" for record in self.layers])


def read_qkv(path: str | Path) -> Capture:
    """Read a capture, or anyone's q, k, v, from ``.safetensors`` or ``.npz``.

    q, k and v have 3 to 5 axes ending in (token, head_dim): (head, …), (batch, head, …) or (layer, batch,
    head, …); k and v may have fewer heads than q, and their own number of tokens. Optional: ``scale``
    (default 1/√head_dim), one number or one per layer; ``mask``, true = attend, (batch, token) or (batch,
    head, query, key).

    Raises InputError saying which tensor and axis is wrong, or where a value is NaN or infinite.
    """
    source = Path(path)
    tensors, metadata = read_tensors(source)
    if metadata is None or metadata.get("format") != "capture":
        return Capture(*layers_of(source, tensors))
    version = metadata.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{path}: written in capture format {version} by version {metadata.get('version')}; this version reads "
            f"formats up to {FORMAT_VERSION}: update it"
        )
    try:
        if version < FORMAT_VERSION:
            tensors, metadata = _with_new_names(tensors, metadata)
        return _own_capture(source, tensors, metadata)
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"{source}: its metadata does not describe its tensors ({error}); capture it again"
        ) from error


def _tensors(capture: Capture) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    records = capture.layers
    for site in SITES:
        values = [getattr(record, site) for record in records]
        held = [_as_tensor(value) for value in values if value is not None]
        if not held:
            continue
        alike = len(held) == len(records) and all(
            v.shape == held[0].shape and v.dtype == held[0].dtype for v in held
        )
        if alike and site == "mask" and all(value is held[0] for value in held):
            tensors[site] = held[0]  # one mask for all layers, as the model used it
        elif alike:
            tensors[site] = torch.stack(held)
        else:
            for record, value in zip(records, values, strict=True):
                if value is not None:
                    tensors[f"layers.{record.index}.{site}"] = _as_tensor(value)
    for record in records:
        for name, value in record.extra.items():
            tensors[f"layers.{record.index}.extra.{name}"] = value
        if record.origin is not None:
            where = record.origin
            tensors[f"layers.{record.index}.origin"] = torch.stack(
                [where.image, where.row, where.column], dim=1
            )
    if capture.tokens is not None:
        tensors["tokens.mask"] = capture.tokens.mask
    # A file holds no views and nothing of a device or a graph.
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }


def _as_tensor(value: Tensor | float) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _metadata(capture: Capture) -> dict[str, Any]:
    layers = [
        {
            "index": record.index,
            "path": record.path,
            "call": record.call,
            "kind": record.kind,
            "rows_sum_to_one": record.rows_sum_to_one,
            "scale_is_number": record.scale is not None and not isinstance(record.scale, Tensor),
        }
        | (
            {"size": record.origin.size, "shift": record.origin.shift, "grid": record.origin.grid}
            if record.origin
            else {}
        )
        for record in capture.layers
    ]
    tokens = capture.tokens
    return {
        "format": "capture",
        "format_version": FORMAT_VERSION,
        "version": __version__,
        "sites": capture.sites,
        "layers": layers,
        "model": capture.model,
        "inputs": capture.inputs,
        "not_run": capture.not_run,
        "notes": capture.notes,
        "tokens": tokens and {"labels": tokens.labels, "kinds": tokens.kinds, "grid": tokens.grid},
    }


def _with_new_names(
    tensors: dict[str, Tensor], metadata: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a file of format 1 holds, by today's names: "layers.0.hidden" is "layers.0.resid_post"."""
    renamed = {}
    for name, value in tensors.items():
        place, dot, site = name.rpartition(".")
        own = re.fullmatch(
            r"(layers\.\d+)?", place
        )  # a family's own sites, "layers.0.extra.…", keep their names
        renamed[place + dot + new_name("site", site) if own else name] = value
    return renamed, metadata | {
        "sites": [new_name("site", site) for site in metadata["sites"]],
        "layers": [new_keys("capture entry", layer) for layer in metadata["layers"]],
    }


def _own_capture(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Capture:
    layers = []
    for place, entry in enumerate(metadata["layers"]):
        record = LayerRecord(
            entry["index"], entry["path"], entry["call"], entry["kind"], entry["rows_sum_to_one"]
        )
        prefix = f"layers.{record.index}."
        for site in SITES:
            value = tensors.get(prefix + site)
            if value is None and site in tensors:
                shared = site == "mask" and tensors[site].ndim == 4
                value = tensors[site] if shared else tensors[site][place]
            setattr(record, site, value)
        if entry["scale_is_number"] and record.scale is not None:
            record.scale = float(record.scale)
        inside = prefix + "extra."
        record.extra = {
            name.removeprefix(inside): value for name, value in tensors.items() if name.startswith(inside)
        }
        if prefix + "origin" in tensors:
            image, row, column = tensors[prefix + "origin"].unbind(dim=1)
            size, shift, grid = (tuple(entry[name]) for name in ("size", "shift", "grid"))
            record.origin = WindowOrigin(image, row, column, size, shift, grid)
        for site in ("q", "k", "v"):
            check_values(path, site, getattr(record, site), record.index)
        layers.append(record)
    tokens = metadata.get("tokens")
    grid = tuple(tokens["grid"]) if tokens and tokens["grid"] else None
    identity = dict(metadata["model"])
    return Capture(
        layers=layers,
        sites=tuple(metadata["sites"]),
        tokens=TokenInfo(tokens["labels"], tokens["kinds"], grid, tensors["tokens.mask"]) if tokens else None,
        inputs=metadata["inputs"],
        not_run=metadata["not_run"],
        notes=metadata.get("notes", []),
        identity=lambda: dict(identity),
    )
