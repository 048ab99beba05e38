"""Two captures side by side: a quantised, converted or patched model against its original."""

from __future__ import annotations

import math
from typing import Annotated

import pandas as pd
import torch
from annotated_types import Ge
from torch import Tensor

from workbench.captures.capturing import Capture
from workbench.captures.layer_records import SITE_AXES, SITES, LayerRecord
from workbench.core.errors import InputError
from workbench.core.options import checked


@checked
def compare(a: Capture, b: Capture, tolerance: Annotated[float, Ge(0)] = 1e-5) -> pd.DataFrame:
    """One row per layer and site that both captures hold: layer, path, site, relative_difference, within.

    relative_difference is max |a − b| / max |a|, dimensionless; infinite where a value is not finite in only
    one of them, or where a is all zero and b is not. ``within`` says whether it is at most ``tolerance``.
    ``frame.attrs["first_layer"]`` is the first layer past the tolerance, None where there is none.

    Raises InputError for other objects than captures, and where the captures hold different layers, or tensors of
    different shapes (which layer, site and axis).
    """
    numbers = [record.index for record in a]
    others = [record.index for record in b]
    if numbers != others:
        raise InputError(f"the captures hold different layers: {numbers} and {others}; capture the same ones")
    rows = []
    for first, second in zip(a, b, strict=True):
        for site, x, y in _shared_sites(first, second):
            difference = _relative_difference(_aligned(x, y, site, first.index))
            rows.append((first.index, first.path, site, difference, difference <= tolerance))
    if not rows:
        raise InputError(f"the captures share no site: {', '.join(a.sites)} and {', '.join(b.sites)}")
    frame = pd.DataFrame(rows, columns=["layer", "path", "site", "relative_difference", "within"])
    past = frame.loc[~frame["within"], "layer"]
    frame.attrs["first_layer"] = int(past.iloc[0]) if len(past) else None
    frame.attrs["tolerance"] = float(tolerance)
    return frame


def _shared_sites(first: LayerRecord, second: LayerRecord) -> list[tuple[str, Tensor, Tensor]]:
    shared = []
    for site in SITES:
        x, y = getattr(first, site), getattr(second, site)
        if site == "mask" and (x is None) != (y is None):
            # No mask is a mask that allows everything.
            x = torch.ones_like(y, dtype=torch.bool) if x is None else x
            y = torch.ones_like(x, dtype=torch.bool) if y is None else y
            if first.q is None or second.q is None:
                continue  # whether a mask was not asked for or not there is unknown
        if x is not None and y is not None:
            shared.append((site, torch.as_tensor(x), torch.as_tensor(y)))
    names = [name for name in first.extra if name in second.extra]
    return shared + [(name, first.extra[name], second.extra[name]) for name in names]


def _aligned(x: Tensor, y: Tensor, site: str, layer: int) -> tuple[Tensor, Tensor]:
    x, y = x.detach().cpu(), y.detach().cpu()
    if site == "mask":
        if torch.bool in (x.dtype, y.dtype) and x.dtype != y.dtype:
            x, y = _allowed(x), _allowed(y)  # what a mask means, not how one kernel wants it written
        if x.ndim == y.ndim and all(
            1 in pair or len(set(pair)) == 1 for pair in zip(x.shape, y.shape, strict=True)
        ):
            x, y = torch.broadcast_tensors(x, y)
    axes = SITE_AXES.get(site, ())
    if x.ndim != y.ndim:
        raise InputError(
            f"layer {layer}, {site}: {x.ndim} axes {tuple(x.shape)} against {y.ndim} {tuple(y.shape)}"
        )
    for number, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)):
        if m != n:
            axis = axes[number] if number < len(axes) and len(axes) == x.ndim else f"number {number}"
            raise InputError(
                f"layer {layer}, {site}: the {axis} axis is {m} in the first capture, {n} in the second"
            )
    return x.double(), y.double()


def _allowed(mask: Tensor) -> Tensor:
    # Eager kernels write "never" as the smallest number of the type in place of -inf.
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _relative_difference(pair: tuple[Tensor, Tensor]) -> float:
    x, y = pair
    if not x.numel():
        return 0.0
    finite = torch.isfinite(x) & torch.isfinite(y)
    same = finite | (x == y) | (x.isnan() & y.isnan())
    if not bool(same.all()):
        return math.inf
    x, y = torch.where(finite, x, 0.0), torch.where(finite, y, 0.0)
    difference, size = float((x - y).abs().amax()), float(x.abs().amax())
    if difference == 0:
        return 0.0
    return difference / size if size else math.inf
