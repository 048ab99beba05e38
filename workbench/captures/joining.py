"""Cut captures into batches of their inputs, and join captures of consecutive batches."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.captures.capturing import Capture
from workbench.captures.labelled_tokens import stack_tokens
from workbench.captures.layer_records import SITES, STREAM, LayerRecord


def inputs_in(record: LayerRecord) -> int:
    """How many inputs a layer was captured of, however many windows they were cut into; 0 where it holds no tensor."""
    if record.origin is not None:
        return int(record.origin.image.max()) + 1
    tensors = (getattr(record, site) for site in ("q", "k", "v", "input", *STREAM, "attn", "head_out"))
    return next((len(value) for value in tensors if value is not None), 0)


def cut_layer(record: LayerRecord, cut: slice, size: int) -> LayerRecord:
    """The inputs ``cut`` of a layer that holds ``size``, windows of each with it."""
    chosen: Any = cut
    batch, origin = size, record.origin
    if origin is not None:
        chosen = (origin.image >= cut.start) & (origin.image < cut.stop)
        batch = len(origin.image)
        origin = replace(
            origin,
            image=origin.image[chosen] - cut.start,
            row=origin.row[chosen],
            column=origin.column[chosen],
        )
    changed: dict[str, Any] = {}
    for site in SITES:
        if site == "mask" and record.causal:  # it is not written out for this
            continue
        value = getattr(record, site)
        if site == "scale" or not isinstance(value, Tensor):
            continue
        if site in ("input", *STREAM) and record.origin is not None:
            changed[site] = value[cut] if len(value) == size else value[chosen]
        elif site != "mask" or (value.ndim == 4 and len(value) == batch):
            changed[site] = value[chosen]
    changed["extra"] = {name: value[chosen] for name, value in record.extra.items()}
    part = copy(record)  # `replace` would read the mask
    for name, value in (changed | {"origin": origin}).items():
        setattr(part, name, value)
    return part


def join_captures(parts: Sequence[Capture]) -> Capture:
    """Join captures of consecutive batches along the batch axis."""
    tokens = [part.tokens for part in parts if part.tokens is not None]
    starts = np.cumsum([0, *[len(part) for part in tokens[:-1]]]).tolist()
    layers = [_join_layer(records, parts[0].sites, starts) for records in zip(*parts, strict=True)]
    joined = replace(parts[0], layers=layers, result=None)
    if tokens:
        joined.tokens = stack_tokens(tokens)
    if all(isinstance(part.result, Tensor) for part in parts):
        joined.result = torch.cat([part.result for part in parts])
    return joined


def _join_layer(records: Sequence[LayerRecord], sites: Sequence[str], starts: Sequence[int]) -> LayerRecord:
    """One layer of consecutive batches; ``starts`` are the numbers of each batch's first input."""
    first = records[0]
    changed: dict[str, Any] = {}
    for site in sites:
        values = [getattr(record, site) for record in records]
        if site == "mask":
            changed[site] = _join_masks(values, records)
        elif site != "scale" and values[0] is not None:
            changed[site] = torch.cat(values)
    changed["extra"] = {key: torch.cat([record.extra[key] for record in records]) for key in first.extra}
    origins = [record.origin for record in records if record.origin is not None]
    if origins:
        changed["origin"] = replace(
            origins[0],
            image=torch.cat([origin.image + start for origin, start in zip(origins, starts, strict=True)]),
            row=torch.cat([origin.row for origin in origins]),
            column=torch.cat([origin.column for origin in origins]),
        )
    return replace(first, **changed)


def _join_masks(masks: list[Tensor | None], records: Sequence[LayerRecord]) -> Tensor | None:
    tensors = [mask for mask in masks if mask is not None]
    if not tensors:
        return None
    first = tensors[0]
    # a mask or bias that all inputs share has no batch axis, or one of size 1
    shared = all(mask.shape == first.shape and torch.equal(mask, first) for mask in tensors[1:])
    if len(tensors) == len(masks) and shared and (first.ndim < 4 or first.shape[0] == 1):
        return first
    # models leave the mask out of a batch without padding: everything may be seen there
    everything = torch.ones_like(first[:1]) if first.dtype == torch.bool else torch.zeros_like(first[:1])
    sizes = [_batch_of(record) for record in records]
    parts = [everything if mask is None else mask for mask in masks]
    return torch.cat([part.expand(size, *part.shape[1:]) for part, size in zip(parts, sizes, strict=True)])


def _batch_of(record: LayerRecord) -> int:
    """Rows of the batch axis of a layer: inputs, or windows."""
    for site in ("q", "k", "v", "attn", "head_out"):
        value = getattr(record, site)
        if value is not None:
            return len(value)
    return 1 if record.causal or record.mask is None else len(record.mask)
