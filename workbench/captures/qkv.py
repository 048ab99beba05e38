"""Layers from any file of q, k and v, whose shapes and values are checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from workbench.captures.labelled_tokens import TokenInfo, tokens_by_id
from workbench.captures.layer_records import SITE_AXES, LayerRecord
from workbench.captures.token_labels import fit_tokens
from workbench.core.errors import InputError

_LISTED = 8
_READ = ("q", "k", "v", "scale", "mask", "attn")


def layers_of(
    path: Path, tensors: dict[str, Tensor]
) -> tuple[list[LayerRecord], tuple[str, ...], TokenInfo, list[str]]:
    """Return the layers, sites, tokens and notes of a file of q, k and v; `read_qkv` lists the tensors it may hold."""
    missing = [site for site in ("q", "k", "v") if site not in tensors]
    if missing:
        raise InputError(
            f"{path}: no {', '.join(missing)}; it holds {', '.join(sorted(tensors)) or 'nothing'}"
        )
    q, k, v = (_with_layers(path, site, tensors[site]) for site in ("q", "k", "v"))
    _check_shapes(path, q, k, v)
    for site, value in (("q", q), ("k", k), ("v", v)):
        for layer in range(len(value)):
            check_values(path, site, value[layer], layer)
    scales = _scales(path, tensors.get("scale"), q)
    masks, real = _masks(path, tensors.get("mask"), q, k)
    attn = _attention(path, tensors.get("attn"), q, k)
    layers = [
        LayerRecord(layer, f"{path.name}[{layer}]", q=q[layer], k=k[layer], v=v[layer], scale=scales[layer],
                    mask=masks[layer], attn=None if attn is None else attn[layer],
                    rows_sum_to_one=attn is None or _sums_to_one(attn[layer]))
        for layer in range(len(q))
    ]  # fmt: skip
    tokens = tokens_by_id(torch.arange(real.shape[1]).expand(real.shape), real, "token")
    sites = ("q", "k", "v", "scale", *(site for site in ("mask", "attn") if site in tensors))
    if bool(real.all()):  # else which of more queries than keys are padding is unknown
        tokens = fit_tokens(tokens, q.shape[3])
    return layers, sites, tokens, unread_note(tensors.keys() - {*_READ})


def unread_note(names: Iterable[str]) -> list[str]:
    """Return a note that lists tensors of a file that are not read; no note without such tensors."""
    unread = sorted(names)
    more = f" and {len(unread) - _LISTED} more" if len(unread) > _LISTED else ""
    return [f"tensors of the file that are not read: {', '.join(unread[:_LISTED])}{more}"] if unread else []


def _with_layers(path: Path, site: str, value: Tensor) -> Tensor:
    if not value.is_floating_point():
        raise InputError(
            f"{path}: {site} holds {str(value.dtype).removeprefix('torch.')}; floating point is needed"
        )
    if not 3 <= value.ndim <= 5:
        raise InputError(
            f"{path}: {site} has {value.ndim} axes {tuple(value.shape)}; it needs 3 to 5: (head, token, head_dim), "
            "(batch, head, token, head_dim) or (layer, batch, head, token, head_dim)"
        )
    return value.reshape((1,) * (5 - value.ndim) + tuple(value.shape))


def _check_shapes(path: Path, q: Tensor, k: Tensor, v: Tensor) -> None:
    def differ(axis: str, first: str, a: int, second: str, b: int) -> InputError:
        return InputError(
            f"{path}: the {axis} axis of {first} is {a}, that of {second} is {b}; they must agree"
        )

    for number, axis in enumerate(("layer", "batch")):
        for site, value in (("k", k), ("v", v)):
            if value.shape[number] != q.shape[number]:
                raise differ(axis, "q", q.shape[number], site, value.shape[number])
    if k.shape[2] != v.shape[2]:
        raise differ("head", "k", k.shape[2], "v", v.shape[2])
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise InputError(
            f"{path}: q has {q.shape[2]} heads, k and v {k.shape[2]}; q's must be a multiple of k's"
        )
    if k.shape[3] != v.shape[3]:
        raise differ("token", "k", k.shape[3], "v", v.shape[3])
    if q.shape[4] != k.shape[4]:
        raise differ("head_dim", "q", q.shape[4], "k", k.shape[4])
    if k.shape[3] < 2:
        raise InputError(
            f"{path}: k has {k.shape[3]} token; attention among fewer than 2 tokens says nothing"
        )
    if 0 in (*q.shape, *v.shape):
        raise InputError(f"{path}: an axis is empty: q {tuple(q.shape)}, v {tuple(v.shape)}")


def _scales(path: Path, scale: Tensor | None, q: Tensor) -> list[float]:
    layers = len(q)
    if scale is None:
        return [1 / math.sqrt(q.shape[4])] * layers
    flat = scale.double().flatten().tolist()
    if len(flat) not in (1, layers):
        raise InputError(
            f"{path}: scale has shape {tuple(scale.shape)}; one number is needed, or one per layer ({layers})"
        )
    if not all(math.isfinite(value) for value in flat):
        raise InputError(f"{path}: scale is NaN or infinite")
    return flat * layers if len(flat) == 1 else flat


def _masks(path: Path, mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[list[Tensor | None], Tensor]:
    """One mask per layer that broadcasts to (batch, head, query, key), and which tokens are real."""
    layers, batch, heads, queries, _ = q.shape
    keys = k.shape[3]
    everything = torch.ones(batch, keys, dtype=torch.bool)
    if mask is None:
        return [None] * layers, everything
    if mask.is_floating_point():
        binary = bool(((mask == 0) | (mask == 1)).all()) and bool((mask == 1).any())
        mask = mask.bool() if binary else mask
        if bool(mask.isnan().any()) or (mask.is_floating_point() and bool((mask == math.inf).any())):
            raise InputError(f"{path}: mask is NaN or +infinite; a float mask is added to the scores")
    else:
        mask = mask.bool()
    if mask.ndim == 2:
        wanted = (batch, keys)
        if tuple(mask.shape) != wanted:
            raise InputError(f"{path}: mask is (batch, token) = {tuple(mask.shape)}; q, k, v need {wanted}")
        real = mask if mask.dtype == torch.bool else everything
        return [mask[:, None, None, :]] * layers, real
    wanted = (layers, batch, heads, queries, keys)
    names = ("layer", "batch", "head", "query", "key")
    if mask.ndim not in (4, 5):
        raise InputError(
            f"{path}: mask has {mask.ndim} axes; it is (batch, token) or (batch, head, query, key)"
        )
    for name, have, want in zip(names[5 - mask.ndim :], mask.shape, wanted[5 - mask.ndim :], strict=True):
        if have not in (1, want):
            raise InputError(f"{path}: the {name} axis of mask is {have}; q, k, v need {want} (or 1)")
    return [mask if mask.ndim == 4 else mask[layer % len(mask)] for layer in range(layers)], everything


def _attention(path: Path, attn: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Return the attention (layer, batch, head, query, key) of a file that has it."""
    if attn is None:
        return None
    attn = _with_layers(path, "attn", attn)
    expected = (*q.shape[:4], k.shape[3])
    if tuple(attn.shape) != expected:
        raise InputError(
            f"{path}: attn has shape {tuple(attn.shape)}; q and k need {expected} (layer, batch, head, query, key)"
        )
    for layer in range(len(attn)):
        check_values(path, "attn", attn[layer], layer)
    return attn


def _sums_to_one(attn: Tensor) -> bool:
    sums = attn.double().sum(dim=-1)
    return bool(((sums - 1).abs() < 1e-2).logical_or(sums == 0).all())


def check_values(path: Path, site: str, value: Tensor | None, layer: int) -> None:
    """Raise InputError naming the place of the first NaN or infinite value."""
    if value is None or bool(torch.isfinite(value).all()):
        return
    bad = torch.isfinite(value).logical_not()
    index = dict(zip(SITE_AXES[site], bad.nonzero()[0].tolist(), strict=True))
    where = ", ".join(f"{axis} {number}" for axis, number in index.items())
    raise InputError(
        f"{path}: {site} has {int(bad.sum())} NaN or infinite values, first at layer {layer}, {where}"
    )
