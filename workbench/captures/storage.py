"""Captures as files, ``.safetensors`` or ``.npz``: written completely, never unpickled.

In a capture's file a tensor has a site of all layers, (layer, batch, …), if they have one shape, otherwise one tensor
per layer, ``layers.3.q``. The metadata is JSON: layers, tokens, and which model and inputs it was.
"""

from __future__ import annotations

import errno
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NotRequired

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import TypedDict

from workbench._version import __version__
from workbench.captures.labelled_tokens import TokenInfo
from workbench.captures.layer_records import DEFAULT_SITES, SITES, Generated, LayerRecord, WindowOrigin
from workbench.captures.other_tools import other_tools_layers
from workbench.captures.qkv import check_values, layers_of
from workbench.core.errors import InputError
from workbench.core.files import atomic_write, check_format
from workbench.core.options import conforming, parsed

FORMAT_VERSION = 3
_KEY = "workbench"
_MOST_UNPACKED, _MOST_PACKED = (
    2**26,
    100,
)  # bytes that an archive may unpack to, and more by this times its own size
_PICKLED = (".pt", ".pth")


@dataclass
class Contents:
    """The layers of a capture and what its file says of them."""

    layers: list[LayerRecord]
    sites: tuple[str, ...] = DEFAULT_SITES
    tokens: TokenInfo | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    generated: Generated | None = None
    identity: Callable[..., dict[str, Any]] = field(
        default_factory=lambda: partial(_identity, {}), repr=False
    )
    """Names the model; with ``fingerprint=False`` without the fingerprint, which takes its time to compute."""

    @property
    def model(self) -> dict[str, Any]:
        """Return spec, checkpoint and fingerprint of the model (computed at the first request)."""
        return self.identity()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: the identity as it is now, without the model."""
        return vars(self) | {"identity": partial(_identity, self.identity())}


def _identity(known: Mapping[str, Any], fingerprint: bool = True) -> dict[str, Any]:
    """Return the identity of a model that is not at hand."""
    return dict(known)


def write_capture(path: str | Path, capture: Contents) -> Path:
    """Write the file that ``Capture.save`` describes."""
    tensors, header = _tensors(capture), _metadata(capture)
    return write_tensors(path, tensors, header | {"sha256": _digest(header, tensors)})


def read_capture(path: str | Path) -> dict[str, Any]:
    """The fields of the ``Capture`` in a file of ours, or in anyone's file of q, k, v; see `read_qkv`."""
    source = Path(path).expanduser()
    tensors, metadata = read_tensors(source)
    if metadata is None or metadata.get("format") != "capture":
        content = other_tools_layers(source, tensors) or layers_of(source, tensors)
        return dict(zip(("layers", "sites", "tokens", "notes"), content, strict=True))
    version = metadata.get("format_version")
    check_format(path, "capture format", version, FORMAT_VERSION)
    try:
        digest = metadata.pop("sha256", None)
        conforming(Header, metadata)
        if digest != _digest(metadata, tensors):
            raise InputError(
                f"{source}: its metadata or the shapes of its tensors were changed after it was written; capture it "
                "again"
            )
        return _capture_fields(source, tensors, metadata)
    except InputError:
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"{source}: its metadata does not describe its tensors ({error}); capture it again"
        ) from error


class TokenEntry(TypedDict):
    """Tokens in the metadata of a file; their mask is a tensor."""

    labels: list[list[str]]
    kinds: list[list[str]]
    grid: tuple[int, int] | None
    image_grids: NotRequired[list[list[tuple[int, int]]]]
    streams: NotRequired[dict[str, TokenEntry]]
    joined: NotRequired[list[str]]


class LayerEntry(TypedDict):
    """One layer in the metadata of a file."""

    index: Annotated[int, Ge(0)]
    path: str
    call: Annotated[int, Ge(0)]
    kind: Literal["token", "channel", "none"]
    rows_sum_to_one: bool
    scale_is_number: bool
    mixer: str
    source: Literal["self", "cross"]
    counts: tuple[int, int] | None
    size: NotRequired[tuple[int, int]]
    shift: NotRequired[tuple[int, int]]
    grid: NotRequired[tuple[int, int]]


class GeneratedEntry(TypedDict):
    """Generated tokens in the metadata of a file."""

    prompt_tokens: Annotated[int, Ge(0)]


class Header(TypedDict):
    """The metadata of a file of ours."""

    format: str
    format_version: int
    version: str
    sites: list[str]
    layers: list[LayerEntry]
    model: dict[str, Any]
    inputs: dict[str, Any]
    not_run: list[str]
    notes: list[str]
    generated: GeneratedEntry | None
    tokens: TokenEntry | None


def _digest(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of the metadata with names, shapes and types of the tensors, in hexadecimal."""
    shapes = {name: [str(value.dtype), *value.shape] for name, value in tensors.items()}
    text = json.dumps([json.loads(json.dumps(header)), shapes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _tensors(capture: Contents) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    records = capture.layers
    for site in SITES:
        values = [getattr(record, site) for record in records]
        present = [_as_tensor(value) for value in values if value is not None]
        if not present:
            continue
        alike = len(present) == len(records) and all(
            v.shape == present[0].shape and v.dtype == present[0].dtype for v in present
        )
        if alike and site == "mask" and all(value is present[0] for value in present):
            tensors[site] = present[0]  # one mask for all layers, as the model used it
        elif alike:
            tensors[site] = torch.stack(present)
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
        for name, others in capture.tokens.streams.items():
            tensors[f"tokens.{name}.mask"] = others.mask
    if capture.generated is not None:
        tensors["generated.sequences"] = capture.generated.sequences
        tensors["generated.real"] = capture.generated.real
        if capture.generated.logits is not None:
            tensors["generated.logits"] = capture.generated.logits
    # A file holds no views and nothing of a device or a graph.
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }


def _as_tensor(value: Tensor | float) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _metadata(capture: Contents) -> dict[str, Any]:
    layers = [
        {
            "index": record.index,
            "path": record.path,
            "call": record.call,
            "kind": record.kind,
            "rows_sum_to_one": record.rows_sum_to_one,
            "scale_is_number": record.scale is not None and not isinstance(record.scale, Tensor),
            "mixer": record.mixer,
            "source": record.source,
            "counts": record.counts,
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
        "generated": capture.generated and {"prompt_tokens": capture.generated.prompt_tokens},
        "tokens": tokens and _of_tokens(tokens),
    }


def _of_tokens(tokens: TokenInfo) -> dict[str, Any]:
    """Return the tokens' entry in a file, without their mask."""
    entry = {"labels": tokens.labels, "kinds": tokens.kinds, "grid": tokens.grid}
    if tokens.image_grids:
        entry["image_grids"] = tokens.image_grids
    if tokens.streams:
        entry["streams"] = {name: _of_tokens(others) for name, others in tokens.streams.items()}
        entry["joined"] = tokens.joined
    return entry


def _tokens_from(entry: dict[str, Any], tensors: dict[str, Tensor], prefix: str = "tokens.") -> TokenInfo:
    return TokenInfo(
        entry["labels"],
        entry["kinds"],
        tuple(entry["grid"]) if entry["grid"] else None,
        tensors[f"{prefix}mask"],
        [[tuple(grid) for grid in grids] for grids in entry.get("image_grids", [])],
        {
            name: _tokens_from(stream, tensors, f"tokens.{name}.")
            for name, stream in entry.get("streams", {}).items()
        },
        tuple(entry.get("joined", ())),
    )


def _capture_fields(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> dict[str, Any]:
    layers = []
    for position, entry in enumerate(metadata["layers"]):
        record = LayerRecord(
            entry["index"], entry["path"], entry["call"], entry["kind"], entry["rows_sum_to_one"],
            entry["source"], tuple(entry["counts"]) if entry["counts"] else None,
            mixer=entry["mixer"],
        )  # fmt: skip
        prefix = f"layers.{record.index}."
        for site in SITES:
            value = tensors.get(prefix + site)
            if value is None and site in tensors:
                shared = site == "mask" and tensors[site].ndim == 4
                value = tensors[site] if shared else tensors[site][position]
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
    tokens = metadata["tokens"]
    identity = dict(metadata["model"])
    generated = metadata["generated"]
    if generated:
        generated = Generated(
            tensors["generated.sequences"],
            generated["prompt_tokens"],
            tensors["generated.real"],
            tensors.get("generated.logits"),
        )
    return {
        "layers": layers,
        "sites": tuple(metadata["sites"]),
        "tokens": tokens and _tokens_from(tokens, tensors),
        "inputs": metadata["inputs"],
        "not_run": metadata["not_run"],
        "notes": metadata["notes"],
        "generated": generated,
        "identity": partial(_identity, identity),
    }


# Tensors with a note in JSON -------------------------------------------------------------------------------


def write_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Path:
    """Write tensors of the CPU that share no memory; the file appears whole or not at all.

    Raises MissingResource naming the path where the folder cannot be written or is full, InputError for an
    ending other than .safetensors and .npz, and for bfloat16 in ``.npz``, which has no such type.
    """
    target = Path(path).expanduser()
    suffix = _suffix(target)
    text = json.dumps(metadata, ensure_ascii=False)
    if suffix == ".npz":
        half = next((name for name, value in tensors.items() if value.dtype == torch.bfloat16), None)
        if half:
            raise InputError(
                f"{target}: {half} is bfloat16, which .npz cannot hold; write a .safetensors file"
            )

    def put(handle: IO[bytes]) -> None:
        if suffix == ".npz":
            arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()}
            np.savez(handle, **arrays, **{_KEY: np.array(text)})
            return
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            save_file(tensors, handle.name, metadata={_KEY: text})
        except SafetensorError as error:  # its writer reports a full disk in its own words
            full = "space" in str(error).lower()
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error

    return atomic_write(target, put)


def _check_unpacked(path: Path, size: int) -> None:
    """Raise InputError for an archive that holds far more than its own size: no tensor of a model packs so well."""
    packed = path.stat().st_size
    if size > _MOST_UNPACKED and size > _MOST_PACKED * packed:
        raise InputError(
            f"{path}: {packed:,} bytes that unpack to {size:,} hold no queries, keys or values; save them with "
            "numpy.savez, which does not pack them"
        )


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The tensors of a file, and the note that `write_tensors` left in it; None in anyone else's file."""
    if path.suffix in _PICKLED:
        return _without_float8(path, _read_pickled(path)), None
    suffix = _suffix(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        if suffix == ".npz":
            if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and advise to load that
                raise InputError(f"{path}: not a readable .npz file; write it with numpy.savez")
            with np.load(path, allow_pickle=False) as archive:
                _check_unpacked(path, sum(part.file_size for part in archive.zip.infolist()))
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
        metadata = parsed(text) if text else None
    except InputError:
        raise
    # a damaged archive fails in many ways: zlib's and zipfile's own errors, sizes that no memory holds
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, MemoryError, EOFError, zlib.error,
            zipfile.BadZipFile, NotImplementedError, SyntaxError) as error:  # fmt: skip
        raise InputError(f"{path}: cannot be read as {suffix} ({error})") from error
    return _without_float8(path, tensors), metadata if isinstance(metadata, dict) else None


def _without_float8(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors; raise `InputError` for types of 8 bits, which have no arithmetic."""
    for name, value in tensors.items():
        if value.is_floating_point() and value.element_size() == 1:
            kind = str(value.dtype).removeprefix("torch.")
            raise InputError(f"{path}: {name} holds {kind}; save it in bfloat16 or a wider type")
    return tensors


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """The tensors that ``torch.save`` wrote, in plain containers only; "attentions.0" is the first of a tuple."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its unpickler fails on damaged files in whatever way they are damaged
        # torch's own message advises weights_only=False: the one thing not to do with an unknown file
        raise InputError(
            f"{path}: not a file of tensors in dicts and tuples, the only one that is read; save dict(cache) of an "
            "object of another kind, or write .safetensors"
        ) from error
    tensors: dict[str, Tensor] = {}

    def flatten(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            tensors[name] = value.detach()
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            tensors[name] = torch.tensor(value)
        elif isinstance(value, (dict, list, tuple)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                flatten(f"{name}.{key}".lstrip("."), item)

    flatten("", content)
    return tensors


def _suffix(path: Path) -> str:
    if path.suffix not in (".safetensors", ".npz"):
        raise InputError(
            f"{path}: a file of q, k, v ends in .safetensors or .npz, not {path.suffix or 'nothing'!r}; what "
            f"torch.save wrote is read from {' and '.join(_PICKLED)}"
        )
    return path.suffix
