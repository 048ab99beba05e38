"""Captures of other tools, found by the names of their tensors, as layers of ours.

- TransformerLens: ``blocks.0.attn.hook_q`` (batch, token, head, head_dim), ``hook_pattern``, ``hook_resid_pre`` …
- transformers: ``attentions`` of ``output_attentions=True``, a tuple or ``attentions.0``, with ``q.0`` … where given;
- nnsight, or your hooks: the outputs of projections by their paths, ``model.layers.0.self_attn.q_proj.output``,
  (batch, token, width), with ``num_heads`` (and ``num_key_value_heads``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from workbench.captures.labelled_tokens import TokenInfo, tokens_by_id
from workbench.captures.layer_records import SITE_AXES, STREAM, LayerRecord
from workbench.captures.qkv import check_values, unread_note
from workbench.core.errors import InputError

_LENS = re.compile(r"blocks\.(\d+)\.(?:attn\.)?hook_(\w+)")
_LENS_SITES = {
    "q": "q", "k": "k", "v": "v", "z": "head_out", "pattern": "attn", "attn_scores": "mask",
    **{site: site for site in STREAM},
}  # fmt: skip
_MAPS = re.compile(r"(encoder_attentions|decoder_attentions|cross_attentions|attentions|q|k|v)\.(\d+)")
_PROJECTED = re.compile(
    r"(?P<path>(?:.*\.)?(?P<layer>\d+)\..*?)\.?(?P<site>q_proj|k_proj|v_proj|query|key|value|c_attn|qkv)(?:\.output)?"
)
_OF_PROJECTION = {"q_proj": "q", "query": "q", "k_proj": "k", "key": "k", "v_proj": "v", "value": "v"}
_LARGE = -1e4  # a score at or below is one of a key that may not be seen


def other_tools_layers(
    path: Path, tensors: Mapping[str, Tensor]
) -> tuple[list[LayerRecord], tuple[str, ...], TokenInfo, list[str]] | None:
    """Return the layers, sites, tokens and notes of another tool's file; None for any other file."""
    read: set[str] = set()
    sites_by_layer = (
        _transformer_lens(tensors, read) or _transformers(tensors, read) or _projected(path, tensors, read)
    )
    if not sites_by_layer:
        return None
    layers, notes = [], unread_note(tensors.keys() - read)
    for number, (name, sites) in enumerate(sites_by_layer.items()):
        record = LayerRecord(number, name, source="cross" if "cross" in name else "self")
        for site, value in sites.items():
            if not value.is_floating_point() and site != "mask":
                raise InputError(f"{path}: {site} of {name} holds {value.dtype}; floating point is needed")
            axes = len(SITE_AXES[site])
            value = value.unsqueeze(0) if value.ndim == axes - 1 else value  # of a single input
            if value.ndim != axes:
                raise InputError(
                    f"{path}: {site} of {name} has {value.ndim} axes {tuple(value.shape)}; it needs {SITE_AXES[site]}"
                )
            if site in ("q", "k", "v"):
                check_values(path, site, value, number)
            setattr(record, site, value)
        _check(path, record)
        layers.append(record)
    if any(record.attn is None and record.mask is None for record in layers):
        notes.append(
            "the file holds no mask: attention computed from its q and k sees every token; save the weights as well "
            "(hook_pattern, attentions), or a mask"
        )
    if any(
        "hook" not in name and record.attn is None
        for name, record in zip(sites_by_layer, layers, strict=True)
    ):
        notes.append(
            "q and k are those of the projections, before norms and rotary embeddings that may follow"
        )
    sites = tuple(dict.fromkeys(site for record in layers for site in record.captured))
    first = layers[0]
    keys = next(x.shape[a] for x, a in ((first.attn, 3), (first.k, 2), (first.q, 2)) if x is not None)
    batch = next(len(x) for x in (first.attn, first.k, first.q) if x is not None)
    return layers, sites, tokens_by_id(torch.arange(keys).expand(batch, keys), None, "token"), notes


def _check(path: Path, record: LayerRecord) -> None:
    if record.attn is None and (record.q is None or record.k is None):
        raise InputError(f"{path}: {record.path} has neither its attention nor both q and k")
    if record.q is None or record.k is None:
        return
    heads, kv_heads = record.q.shape[1], record.k.shape[1]
    if record.q.shape[-1] != record.k.shape[-1] or heads % kv_heads:
        raise InputError(
            f"{path}: q {tuple(record.q.shape)} and k {tuple(record.k.shape)} of {record.path} do not go together, as "
            "(batch, head, token, head_dim)"
        )
    expected = (*record.q.shape[:3], record.k.shape[2])
    if record.attn is not None and tuple(record.attn.shape) != expected:
        raise InputError(
            f"{path}: the attention of {record.path} is {tuple(record.attn.shape)}; its q and k make {expected}"
        )
    record.scale = 1 / math.sqrt(record.q.shape[-1])


Layers = dict[str, dict[str, Tensor]]


def _transformer_lens(tensors: Mapping[str, Tensor], read: set[str]) -> Layers:
    """By block, queries and keys after a rotary embedding; ``read`` gets the names that are read."""
    blocks: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        match = _LENS.fullmatch(name)
        if match is None:
            continue
        hook = match[2]
        site = _LENS_SITES.get(hook.removeprefix("rot_"))
        sites = blocks.setdefault(int(match[1]), {})
        if site is None:
            continue
        read.add(name)
        if site in sites and not hook.startswith("rot_"):
            continue
        if site in ("q", "k", "v", "head_out"):
            value = value.transpose(-3, -2)
        sites[site] = value > _LARGE if site == "mask" else value
    return {f"blocks.{number}.attn.hook": blocks[number] for number in sorted(blocks) if blocks[number]}


def _transformers(tensors: Mapping[str, Tensor], read: set[str]) -> Layers:
    """By the tuple that a map was in, and its place there; ``read`` gets the names that are read."""
    layers: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, value in tensors.items():
        match = _MAPS.fullmatch(name)
        if match is None and name == "attentions" and value.ndim == 5:
            read.add(name)
            for layer, part in enumerate(value):
                layers.setdefault(("attentions", layer), {})["attn"] = part
            for site in (site for site in "qkv" if site in tensors and tensors[site].ndim == 5):
                read.add(site)
                for layer, part in enumerate(tensors[site]):
                    layers.setdefault(("attentions", layer), {})[site] = part
        elif match is not None:
            read.add(name)
            operand = len(match[1]) == 1
            key = ("attentions" if operand else match[1], int(match[2]))
            layers.setdefault(key, {})[match[1] if operand else "attn"] = value
    order = ("encoder_attentions", "attentions", "decoder_attentions", "cross_attentions")
    return {
        f"{name}.{layer}": layers[name, layer]
        for name, layer in sorted(layers, key=lambda key: (order.index(key[0]), key[1]))
    }


def _projected(path: Path, tensors: Mapping[str, Tensor], read: set[str]) -> Layers:
    """By the path of the module whose projections they are, split into heads; ``read`` gets the names that are read."""
    matched = {name: match for name in tensors if (match := _PROJECTED.fullmatch(name)) is not None}
    if not matched:
        return {}
    read |= matched.keys() | {"num_heads", "num_key_value_heads"}
    heads = tensors.get("num_heads")
    if heads is None:
        raise InputError(
            f"{path}: {next(iter(matched))} is a projection of all heads (batch, token, width); save num_heads beside "
            "it, and num_key_value_heads where keys have fewer"
        )
    count, of_keys = int(heads), int(tensors.get("num_key_value_heads", heads))
    modules: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, match in matched.items():
        module_sites = modules.setdefault((int(match["layer"]), match["path"]), {})
        if match["site"] in _OF_PROJECTION:
            sites = {_OF_PROJECTION[match["site"]]: tensors[name]}
        else:
            sites = dict(zip("qkv", tensors[name].chunk(3, dim=-1), strict=True))
        for site, value in sites.items():
            into = count if site == "q" else of_keys
            if value.shape[-1] % into:
                raise InputError(f"{path}: {into} heads do not divide the width of {name}, {value.shape[-1]}")
            module_sites[site] = value.unflatten(-1, (into, -1)).transpose(-3, -2)
    return {key[1]: modules[key] for key in sorted(modules)}
