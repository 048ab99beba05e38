"""Captures part by part: a model over batches of its inputs, or a file of q, k, v cut into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from workbench.analyses.layer import visible_keys
from workbench.captures import (
    SITES,
    STREAM,
    Capture,
    LayerRecord,
    TokenInfo,
    attention_modules,
    capture,
    read_qkv,
)
from workbench.core.errors import InputError
from workbench.core.selection import parse_numbers

if TYPE_CHECKING:
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel


class Part(NamedTuple):
    """One batch: its capture, the name of each input, and its pictures where there are any."""

    capture: Capture
    ids: Sequence[str]
    pictures: Sequence[np.ndarray] | None = None
    perturbed: Capture | None = None
    """Of the inputs as an analysis perturbed them."""


@dataclass
class Stream:
    """Parts in the order of the inputs, with what they come from; ``notes`` grow while parts are read."""

    model: dict[str, Any]
    inputs: dict[str, Any]
    size: int
    parts: Callable[[Callable[[Part], None] | None], Iterator[Part]]
    """With a function, each layer of a running model goes to it in a part of its own, and is freed; parts of a batch
    that come out then hold none."""
    notes: list[str] = field(default_factory=list)
    module: nn.Module | None = None
    """The model that runs, for analyses of its weights; None for a file."""
    depth: int = 1
    """How many layers a part is expected to have."""
    content: Any = None
    """What goes into the model, or the file's capture, for who must know it by its content."""

    def __iter__(self) -> Iterator[Part]:
        return self.parts(None)


def stream_model(
    model: str | LoadedModel | nn.Module,
    inputs: str | Inputs | Tensor | Mapping[str, Tensor],
    sites: Sequence[str],
    layers: Any,
    batch_size: int,
    *,
    keep_nonfinite: bool = False,
    perturb: Callable[[Any], Inputs] | None = None,
    n: int | None = None,
    seed: int = 0,
    checkpoint: str | int | None = None,
    preprocessing: str = "paper",
    device: Any = None,
    dtype: Any = None,
) -> Stream:
    """Capture a model over its inputs, ``batch_size`` at a time; only ``sites`` and ``layers`` are kept.

    A model or inputs given as they are (not by name) are taken so: ``checkpoint``, ``device``, ``dtype``,
    ``n``, ``seed`` and ``preprocessing`` then do nothing, and raise `InputError` where they ask for something
    else. With ``keep_nonfinite`` layers with NaN or infinite values are captured unchecked, and
    a note says so. With ``alter`` the model runs again on what it makes of every batch,
    which must be named inputs, not tensors.
    """
    loaded = _load(model, checkpoint, device, dtype)
    spec, identity = _identity(loaded)
    given: Any = inputs
    if isinstance(inputs, str):
        if isinstance(loaded, nn.Module):
            raise InputError(
                f"inputs {inputs!r} need a model that load() returned; give {spec} its batch itself"
            )
        from workbench.data.batches import inputs as choose

        given = choose(inputs, loaded, n=n, seed=seed, preprocessing=preprocessing)
    elif n is not None:
        raise InputError("n chooses among inputs given by name; cut what you give instead, as inputs[:10]")
    if not hasattr(given, "batches"):
        given = _Plain(given)
    if perturb is not None and isinstance(given, _Plain):
        raise InputError("this analysis alters the inputs; give them by name, or what inputs() returned")
    module = getattr(loaded, "module", loaded)
    chosen = parse_numbers("layer", layers)
    depth = len(attention_modules(module) if chosen is None else chosen)

    def parts(each: Callable[[Part], None] | None) -> Iterator[Part]:
        for batch in given.batches(batch_size):
            # the same number in every batch: layers are counted from the first
            what = batch if hasattr(batch, "tokens") else batch.batch
            take = None if each is None else _taking(each, batch)
            captured = capture(
                loaded, what, layers=layers, sites=sites, keep_nonfinite=keep_nonfinite, each=take
            )
            stream.notes += captured.notes
            perturbed = (
                None if perturb is None else capture(loaded, perturb(batch), layers=layers, sites=sites)
            )
            yield Part(captured, batch.ids, getattr(batch, "images", None), perturbed)

    stream = Stream(
        identity, given.identity, len(given), parts, list(given.notes), module, max(1, depth), given
    )
    return stream


def _taking(each: Callable[[Part], None], batch: Any) -> Callable[[LayerRecord, TokenInfo], None]:
    """A function that hands every layer of a batch on in a part of its own."""

    def take(record: LayerRecord, tokens: TokenInfo) -> None:
        each(Part(Capture([record], tokens=tokens), batch.ids, getattr(batch, "images", None)))

    return take


def stream_weights(
    model: str | LoadedModel | nn.Module,
    layers: Any,
    *,
    checkpoint: str | int | None = None,
    device: Any = None,
    dtype: Any = None,
) -> Stream:
    """The attention layers of a model that runs on nothing: one part without inputs, for analyses of weights.

    Layers are the attention modules in the order of the model's definition; one that is used twice counts once.
    Raises `InputError` where there is none, or no such layer.
    """
    loaded = _load(model, checkpoint, device, dtype)
    spec, identity = _identity(loaded)
    module = getattr(loaded, "module", loaded)
    found = attention_modules(module)
    if not found:
        raise InputError(f"{spec} has no attention that capture can see; see docs/capture.md")
    chosen = parse_numbers("layer", layers, len(found))
    capture = Capture([LayerRecord(number, found[number][0]) for number in chosen], ())
    return Stream(identity, {}, 0, lambda each: iter([Part(capture, [])]), module=module, depth=len(chosen))


def _load(model: Any, checkpoint: Any, device: Any, dtype: Any) -> Any:
    if isinstance(model, str):
        from workbench.models.loading import load

        return load(model, checkpoint=checkpoint, device=device, dtype=dtype)
    asked = {"checkpoint": checkpoint, "device": device, "dtype": dtype}
    for name, value in asked.items():
        if value is not None:
            raise InputError(f"{name} loads a model given by name; this one is loaded already")
    return model


def _identity(model: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(model, nn.Module):
        name = type(model).__name__
        return name, {"spec": name, "checkpoint": None, "sha256": None}
    if not hasattr(model, "module"):
        kind = type(model).__name__
        raise InputError(f"model must be a spec, what load() returned or a torch module; got {kind}")
    return model.spec, dict(model.identity)


@dataclass
class _Plain:
    """A batch as the user gave it, numbered, in place of named inputs."""

    batch: Any
    start: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tensors = self.batch.values() if isinstance(self.batch, Mapping) else [self.batch]
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or tensor.ndim == 0:
                raise InputError(
                    "inputs must be a spec, what inputs() returned, a tensor, or a dict of tensors with the "
                    f"inputs along axis 0; got {type(tensor).__name__}"
                )
        if len({len(tensor) for tensor in tensors}) != 1:
            raise InputError("the tensors of a batch must have one size along axis 0, the inputs")

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())) if isinstance(self.batch, Mapping) else self.batch)

    @property
    def ids(self) -> list[str]:
        return [str(self.start + i) for i in range(len(self))]

    @property
    def identity(self) -> dict[str, Any]:
        return {"spec": "tensor", "n": len(self), "seed": None, "sha256": None}

    def batches(self, size: int) -> Iterator[_Plain]:
        for start in range(0, len(self), size):
            cut = slice(start, start + size)
            if isinstance(self.batch, Mapping):
                yield _Plain({key: value[cut] for key, value in self.batch.items()}, start)
            else:
                yield _Plain(self.batch[cut], start)


def stream_file(source: str | Path | Capture, sites: Sequence[str], layers: Any, batch_size: int) -> Stream:
    """Cut a file of q, k, v (or a capture in memory) into batches.

    Raises `InputError` where it lacks what ``sites`` ask for and q, k, v cannot give: attention is computed
    from q, k, scale and mask, the heads' output from it and v, hidden states from nothing.
    """
    held = source if isinstance(source, Capture) else read_qkv(source)
    name = Path(source).name if not isinstance(source, Capture) else "capture"
    for record in held:
        # Layers without attention between tokens lack these by nature: the analysis will say so.
        natural = {"q", "k", "v"} if record.kind == "none" else set()
        for site in set(sites) - natural - {"mask", "scale", "attn", "head_out"}:
            if getattr(record, site, None) is None:
                raise InputError(
                    f"{name}: layer {record.index} holds no {site!r}, and queries, keys and values do not "
                    f"give it; give model and inputs, or capture that site into the file (--sites {site})"
                )
        if "attn" in sites and not natural and record.attn is None and (record.q is None or record.k is None):
            raise InputError(
                f"{name}: layer {record.index} holds neither 'attn' nor 'q' and 'k' to compute it from"
            )
    numbers = _pick(held, layers)
    size = _inputs_in(held[numbers[0]])
    model = held.model
    identity = {
        "spec": model.get("spec") or name,
        "checkpoint": model.get("checkpoint"),
        "sha256": model.get("fingerprint"),
    }
    inputs = {"spec": None, "n": size, "seed": None, "sha256": None} | held.inputs
    if not isinstance(source, Capture):
        from workbench.core.files import sha256_file

        inputs["qkv"] = {"name": name, "sha256": sha256_file(source)}

    def parts(each: Callable[[Part], None] | None) -> Iterator[Part]:
        for start in range(0, size, batch_size):
            cut = slice(start, min(start + batch_size, size))
            records = [_cut(held[number], cut, size) for number in numbers]
            tokens = held.tokens[cut] if held.tokens is not None else None
            ids = [str(number) for number in range(size)[cut]]
            yield Part(Capture(records, held.sites, _without_unseen(tokens, records)), ids)

    content = held if isinstance(source, Capture) else inputs["qkv"]
    return Stream(identity, inputs, size, parts, depth=len(numbers), content=content)


def _pick(held: Capture, layers: Any) -> list[int]:
    """Numbers of the chosen layers that the capture holds; negative ones count from its last."""
    present = [record.index for record in held]
    chosen = parse_numbers("layer", layers)
    if chosen is None:
        return present
    return sorted({held[number].index for number in chosen})


def _inputs_in(record: LayerRecord) -> int:
    if record.origin is not None:
        return int(record.origin.image.max()) + 1
    return next(
        len(getattr(record, site))
        for site in ("q", "k", "v", "input", *STREAM, "attn", "head_out")
        if getattr(record, site) is not None
    )


def _cut(record: LayerRecord, cut: slice, size: int) -> LayerRecord:
    """The inputs ``cut`` of a layer, windows of each with it."""
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
        value = getattr(record, site)
        if site == "scale" or not isinstance(value, Tensor):
            continue
        if site in ("input", *STREAM) and record.origin is not None:
            changed[site] = value[cut] if len(value) == size else value[chosen]
        elif site != "mask" or (value.ndim == 4 and len(value) == batch):
            changed[site] = value[chosen]
    changed["extra"] = {name: value[chosen] for name, value in record.extra.items()}
    return replace(record, origin=origin, **changed)


def _without_unseen(tokens: TokenInfo | None, records: Sequence[LayerRecord]) -> TokenInfo | None:
    """Tokens with those marked as padding that a mask (batch, head, query, key) hides from every query."""
    mask = records[0].mask
    if tokens is None or mask is None or records[0].origin is not None or not tokens.mask.all():
        return tokens
    batch, keys = tokens.mask.shape
    if mask.shape[-1] != keys or mask.ndim != 4:
        return tokens
    seen = visible_keys(mask, mask).any((1, 2))
    return replace(tokens, mask=seen.expand(batch, keys))


def capture_inputs(
    model: str | LoadedModel | nn.Module,
    inputs: str | Inputs | Tensor | Mapping[str, Tensor],
    *,
    layers: Any = None,
    sites: Sequence[str] = ("q", "k", "v"),
    n: int | None = None,
    seed: int = 0,
    checkpoint: str | int | None = None,
    preprocessing: str = "paper",
    batch_size: int = 8,
    device: Any = None,
    dtype: Any = None,
) -> Capture:
    """Capture all inputs, ``batch_size`` at a time, as one capture (what ``workbench capture`` writes).

    Arguments as in `workbench.analyze`. Sites are held in memory for all inputs at once.
    """
    stream = stream_model(
        model, inputs, sites, layers, batch_size,
        n=n, seed=seed, checkpoint=checkpoint, preprocessing=preprocessing, device=device, dtype=dtype,
    )  # fmt: skip
    parts = [part.capture for part in stream]
    joined = parts[0] if len(parts) == 1 else _join(parts)
    joined.inputs = stream.inputs
    return joined


def _join(parts: Sequence[Capture]) -> Capture:
    """Captures of consecutive batches as one, joined along the batch axis."""
    tokens = [part.tokens for part in parts if part.tokens is not None]
    starts = np.cumsum([0, *[len(part) for part in tokens[:-1]]]).tolist()
    layers = [_join_layer(records, parts[0].sites, starts) for records in zip(*parts, strict=True)]
    joined = replace(parts[0], layers=layers, result=None)
    if tokens:
        joined.tokens = TokenInfo(
            [labels for part in tokens for labels in part.labels],
            [kinds for part in tokens for kinds in part.kinds],
            tokens[0].grid,
            torch.cat([part.mask for part in tokens]),
        )
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
    held = [mask for mask in masks if mask is not None]
    if not held:
        return None
    first = held[0]
    # a mask or bias that all inputs share has no batch axis, or one of size 1
    shared = all(mask.shape == first.shape and torch.equal(mask, first) for mask in held[1:])
    if len(held) == len(masks) and shared and (first.ndim < 4 or first.shape[0] == 1):
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
    return 1 if record.mask is None else len(record.mask)
