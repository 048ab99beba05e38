"""Captures on disk, and anyone's file of q, k, v: ``.safetensors`` or ``.npz``, never unpickled.

A tensor holds a site of all layers, (layer, batch, …), where the layers are alike, else there is one tensor
per layer, ``layers.3.q``. The metadata (key "workbench") is JSON: layers, tokens, and which model and inputs
it was.
"""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench._version import __version__
from workbench.captures.records import SITE_AXES, SITES, Capture, LayerRecord, TokenInfo, WindowOrigin
from workbench.captures.tokens import fit_tokens
from workbench.core.errors import InputError, MissingResource

FORMAT_VERSION = 1
_KEY = "workbench"


# Writing --------------------------------------------------------------------------------------------------


def save_capture(capture: Capture, path: str | Path) -> Path:
    """Write a capture; the file appears whole or not at all.

    Raises MissingResource naming the path where the folder cannot be written or is full, InputError for an
    ending other than .safetensors and .npz, and for bfloat16 in ``.npz``, which has no such type.
    """
    target = Path(path)
    suffix = _suffix(target)
    tensors = _tensors(capture)
    if suffix == ".npz":
        half = next((name for name, value in tensors.items() if value.dtype == torch.bfloat16), None)
        if half:
            raise InputError(
                f"{target}: {half} is bfloat16, which .npz cannot hold; write a .safetensors file"
            )
    metadata = json.dumps(_metadata(capture), ensure_ascii=False)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=suffix, dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            _write(temporary, suffix, tensors, metadata)
            # mkstemp makes files private; a result is as readable as any other file its owner writes.
            temporary.chmod(0o666 & ~_umask())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        why = "no room is left" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        raise MissingResource(f"cannot write {target}: {why}; choose another folder or make room") from error
    return target


def _write(path: Path, suffix: str, tensors: dict[str, Tensor], metadata: str) -> None:
    if suffix == ".npz":
        arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()}
        np.savez(path, **arrays, **{_KEY: np.array(metadata)})
        return
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={_KEY: metadata})
    except SafetensorError as error:  # its writer reports a full disk in its own words
        raise OSError(errno.ENOSPC if "space" in str(error).lower() else errno.EIO, str(error)) from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


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
        "tokens": tokens and {"labels": tokens.labels, "kinds": tokens.kinds, "grid": tokens.grid},
    }


# Reading --------------------------------------------------------------------------------------------------


def read_qkv(path: str | Path) -> Capture:
    """Read a capture, or anyone's q, k, v, from ``.safetensors`` or ``.npz``.

    q, k and v have 3 to 5 axes ending in (token, head_dim): (head, …), (batch, head, …) or (layer, batch,
    head, …); k and v may have fewer heads than q, and their own number of tokens. Optional: ``scale``
    (default 1/√head_dim), one number or one per layer; ``mask``, true = attend, (batch, token) or (batch,
    head, query, key).

    Raises InputError saying which tensor and axis is wrong, or where a value is NaN or infinite.
    """
    source = Path(path)
    tensors, metadata = _read(source, _suffix(source))
    try:
        if metadata is not None:
            return _own_capture(source, tensors, metadata)
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"{source}: its metadata does not describe its tensors ({error}); capture it again"
        ) from error
    return _foreign_capture(source, tensors)


def _suffix(path: Path) -> str:
    if path.suffix not in (".safetensors", ".npz"):
        raise InputError(
            f"{path}: a file of q, k, v ends in .safetensors or .npz, not {path.suffix or 'nothing'!r}"
        )
    return path.suffix


def _read(path: Path, suffix: str) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        if suffix == ".npz":
            if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and advise to load that
                raise InputError(f"{path}: not a readable .npz file; write it with numpy.savez")
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            text = str(arrays.pop(_KEY)) if _KEY in arrays else None
            tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
        else:
            from safetensors import SafetensorError, safe_open

            try:
                with safe_open(path, framework="pt") as file:
                    text = (file.metadata() or {}).get(_KEY)
                    names = list(file.keys())
                    tensors = {name: file.get_tensor(name) for name in names}
            except SafetensorError as error:
                raise InputError(f"{path}: not a readable safetensors file ({error})") from error
        metadata = json.loads(text) if text else None
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as {suffix} ({error})") from error
    if not isinstance(metadata, dict) or metadata.get("format") != "capture":
        return tensors, None
    if metadata.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path}: written in capture format {metadata.get('format_version')} by version "
            f"{metadata.get('version')}; "
            f"this version reads format {FORMAT_VERSION}"
        )
    return tensors, metadata


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
            _check_values(path, site, getattr(record, site), record.index)
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
        identity=lambda: dict(identity),
    )


def _foreign_capture(path: Path, tensors: dict[str, Tensor]) -> Capture:
    missing = [site for site in ("q", "k", "v") if site not in tensors]
    if missing:
        raise InputError(
            f"{path}: no {', '.join(missing)}; it holds {', '.join(sorted(tensors)) or 'nothing'}"
        )
    q, k, v = (_with_layers(path, site, tensors[site]) for site in ("q", "k", "v"))
    _check_shapes(path, q, k, v)
    for site, value in (("q", q), ("k", k), ("v", v)):
        for layer in range(len(value)):
            _check_values(path, site, value[layer], layer)
    scales = _scales(path, tensors.get("scale"), q)
    masks, real = _masks(path, tensors.get("mask"), q, k)
    layers = [
        LayerRecord(layer, f"{path.name}[{layer}]", q=q[layer], k=k[layer], v=v[layer], scale=scales[layer],
                    mask=masks[layer])
        for layer in range(len(q))
    ]  # fmt: skip
    labels = [[str(i) for i in range(real.shape[1])] for _ in range(real.shape[0])]
    kinds = [["token" if keep else "padding" for keep in row] for row in real.tolist()]
    sites = ("q", "k", "v", "scale") + (("mask",) if "mask" in tensors else ())
    return Capture(layers, sites, fit_tokens(TokenInfo(labels, kinds, None, real), q.shape[3]))


def _with_layers(path: Path, site: str, value: Tensor) -> Tensor:
    if not value.is_floating_point():
        raise InputError(
            f"{path}: {site} holds {str(value.dtype).removeprefix('torch.')}; floating point is needed"
        )
    if not 3 <= value.ndim <= 5:
        raise InputError(
            f"{path}: {site} has {value.ndim} axes {tuple(value.shape)}; it needs 3 to 5: (head, token, "
            "head_dim), "
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


def _check_values(path: Path, site: str, value: Tensor | None, layer: int) -> None:
    if value is None or bool(torch.isfinite(value).all()):
        return
    bad = torch.isfinite(value).logical_not()
    place = dict(zip(SITE_AXES[site], bad.nonzero()[0].tolist(), strict=True))
    where = ", ".join(f"{axis} {number}" for axis, number in place.items())
    raise InputError(
        f"{path}: {site} has {int(bad.sum())} NaN or infinite values, first at layer {layer}, {where}"
    )


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
