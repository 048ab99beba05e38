"""Labels and kinds of tokens, their patch grids and streams, and which of them a layer's queries and keys are."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from workbench.captures.layer_records import LayerRecord

_SHORT = {"class": "[CLS]", "distillation": "[DIST]", "register": "[REG]"}


_STREAMS = {
    "image": re.compile(r"^(vision|visual|image|img|vit|vpm)"),
    "audio": re.compile(r"^(audio|speech|sound)"),
    "decoder": re.compile(r"^(decoder|text_decoder|dec)"),
    "text": re.compile(r"^(text|language|encoder_hid)"),
}


_ENCODER = re.compile(r"^(encoder|enc$)")


@dataclass
class TokenInfo:
    """Labels and kinds of tokens: one list of labels and kinds per input, the patch grid, and which tokens are real.

    Kinds are class, distillation, register, patch, word, entity, frame (of a sound), padding, or token where nothing
    is known.
    ``mask`` is true for real tokens, false for padding; ``grid`` is (rows, columns) of the patches where an input is
    one image. For images among words, ``image_grids`` has (rows, columns) of each image of each input.

    A model with several kinds of tokens has the others in ``streams``: "decoder" (the tokens an encoder–decoder
    writes), "image", "text", "audio". ``of(layer)`` are the tokens of a layer's queries, with ``keys`` those of
    its keys where they differ (cross attention).
    """

    labels: list[list[str]]
    kinds: list[list[str]]
    grid: tuple[int, int] | None
    mask: Bool[Tensor, "batch token"]
    image_grids: list[list[tuple[int, int]]] = field(default_factory=list)
    streams: dict[str, TokenInfo] = field(default_factory=dict)
    joined: tuple[str, ...] = ()
    """The streams whose tokens some layers have on one axis, in order ("" are these tokens themselves)."""
    keys: TokenInfo | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def count(self) -> int:
        """How many tokens an input has, padding included."""
        return self.mask.shape[1]

    @property
    def summary(self) -> str:
        """Return the number of tokens of each kind per input, as a range where inputs differ."""
        counts = [Counter(kinds) for kinds in self.kinds]
        parts = []
        for kind in dict.fromkeys(kind for kinds in self.kinds for kind in kinds):
            low, high = min(count[kind] for count in counts), max(count[kind] for count in counts)
            grid = f" ({self.grid[0]} × {self.grid[1]})" if self.grid and kind == "patch" else ""
            parts.append(f"{low if low == high else f'{low}–{high}'} {kind}{grid}")
        streams = "".join(
            f"; {name}: {tokens.summary}" for name, tokens in self.streams.items() if tokens.count
        )
        return f"{self.mask.shape[1]} tokens: {', '.join(parts)}{streams}"

    def __getitem__(self, chosen: slice) -> TokenInfo:
        alike = {name: tokens for name, tokens in self.streams.items() if len(tokens) == len(self)}
        return TokenInfo(
            self.labels[chosen],
            self.kinds[chosen],
            self.grid,
            self.mask[chosen],
            self.image_grids[chosen],
            {name: tokens[chosen] for name, tokens in alike.items()},
            self.joined,
            None if self.keys is None else self.keys[chosen],
        )

    def of(self, layer: LayerRecord) -> TokenInfo:
        """The tokens that a layer's queries are, and in ``keys`` those that they attend to where these are others.

        Unknown tokens are numbered.
        """
        if layer.counts is None or layer.origin is not None or layer.kind != "token":
            return self
        queries, keys = layer.counts
        if not self.streams and layer.source == "self":
            return self._fitted(queries, keys, None if layer.causal else layer.mask)
        stream = _stream_of(layer.path, self.streams)
        query_tokens = self._stream(stream, queries)
        if layer.source == "self":
            return query_tokens
        if queries != self._named(stream).count and query_tokens.grid is None:
            query_tokens = self._numbered(queries)  # learned queries that gather from the tokens
        others = [tokens for tokens in (self, *self.streams.values()) if tokens.count == keys]
        others.sort(key=lambda tokens: tokens is self._named(stream))  # its own tokens last
        return replace(query_tokens, keys=others[0].alone() if others else self._numbered(keys))

    def _fitted(self, queries: int, keys: int, mask: Tensor | None) -> TokenInfo:
        """Return these tokens, numbered where a layer has another number of them, and of their patches."""
        counts = {self.count, 0 if self.grid is None else math.prod(self.grid)}
        if counts & {queries, keys}:
            return self
        attended = None if mask is None or queries != keys else attended_keys(mask, keys)
        if attended is None and not self.mask.all():
            return self  # which of the layer's tokens are padding is unknown
        return numbered(self, queries, attended)

    def alone(self) -> TokenInfo:
        """Return these tokens without streams and keys."""
        return replace(self, streams={}, joined=(), keys=None) if self.streams or self.keys else self

    def first(self, count: int) -> TokenInfo:
        """Return the first ``count`` tokens of every input."""
        labels, kinds = ([row[:count] for row in rows] for rows in (self.labels, self.kinds))
        return replace(self, labels=labels, kinds=kinds, mask=self.mask[:, :count])

    def _named(self, stream: str) -> TokenInfo:
        return self.streams.get(stream, self)

    def _stream(self, stream: str, count: int) -> TokenInfo:
        tokens = self._named(stream)
        if tokens.count == count:
            return tokens.alone()
        if (
            tokens.count > count and not tokens.mask[:, count:].any()
        ):  # of a part of the inputs the padding is less
            return tokens.alone().first(count)
        parts = [self._named(name).alone() for name in self.joined]
        if sum(part.count for part in parts) == count:
            return _join_tokens(parts)
        coarser = None if tokens.grid is None or count == 1 else coarser_grid(tokens.grid, count)
        return self._numbered(count) if coarser is None else image_tokens(len(tokens), (), coarser)

    def _numbered(self, count: int) -> TokenInfo:
        return tokens_by_id(torch.arange(count).expand(len(self), count), None, "token")


def _stream_of(path: str, streams: Mapping[str, TokenInfo]) -> str:
    """The name of the stream that a module at this path works on, by the names of the modules around it."""
    for part in path.split("."):
        for name, pattern in _STREAMS.items():
            if name in streams and pattern.search(part):
                return name
        if _ENCODER.search(part):
            return ""
    return ""


def image_tokens(size: int, special: tuple[str, ...], grid: tuple[int, int]) -> TokenInfo:
    """TokenInfo of ``size`` images: special tokens, then grid[0] × grid[1] patches in reading order."""
    rows, columns = grid
    labels = [_SHORT[kind] for kind in special] + [
        f"{row},{column}" for row in range(rows) for column in range(columns)
    ]
    kinds = [*special, *["patch"] * (rows * columns)]
    mask = torch.ones(size, len(kinds), dtype=torch.bool)
    return TokenInfo([list(labels) for _ in range(size)], [list(kinds) for _ in range(size)], grid, mask)


def stack_tokens(parts: Sequence[TokenInfo]) -> TokenInfo:
    """The tokens of consecutive batches of inputs."""
    return replace(
        parts[0],
        labels=[labels for part in parts for labels in part.labels],
        kinds=[kinds for part in parts for kinds in part.kinds],
        mask=torch.cat([part.mask for part in parts]),
        image_grids=[grids for part in parts for grids in part.image_grids],
        streams={
            name: stack_tokens([part.streams[name] for part in parts])
            for name in parts[0].streams
            if all(name in part.streams for part in parts)
        },
    )


def video_tokens(size: int, frames: int, grid: tuple[int, int]) -> TokenInfo:
    """TokenInfo of ``size`` videos: patches labelled "frame:row,column", frame by frame in reading order."""
    each = [f"{row},{column}" for row in range(grid[0]) for column in range(grid[1])]
    labels = [f"{frame}:{label}" for frame in range(frames) for label in each] if frames > 1 else each
    mask = torch.ones(size, len(labels), dtype=torch.bool)
    kinds = ["patch"] * len(labels)
    grids = [[grid] * frames for _ in range(size)]
    return TokenInfo(
        [list(labels) for _ in range(size)],
        [list(kinds) for _ in range(size)],
        grid if frames == 1 else None,
        mask,
        [] if frames == 1 else grids,
    )


def _join_tokens(parts: Sequence[TokenInfo]) -> TokenInfo:
    """Tokens one after another on one axis."""
    return TokenInfo(
        [[*itertools.chain(*rows)] for rows in zip(*(part.labels for part in parts), strict=True)],
        [[*itertools.chain(*rows)] for rows in zip(*(part.kinds for part in parts), strict=True)],
        None,
        torch.cat([part.mask for part in parts], dim=1),
        [[part.grid for part in parts if part.grid is not None] for _ in parts[0].labels],
    )


def coarser_grid(grid: tuple[int, int], count: int) -> tuple[int, int] | None:
    """The grid of ``count`` patches of the same image, each a square of patches of ``grid``."""
    step = math.isqrt(max(1, grid[0] * grid[1] // max(1, count)))
    rows, columns = grid[0] // step, grid[1] // step
    return (rows, columns) if rows * columns == count else None


def tokens_by_id(ids: Tensor, mask: Any, kind: str = "word") -> TokenInfo:
    """Return tokens labelled by their ids; padding where the mask (batch, token), if any, is 0."""
    masked = isinstance(mask, Tensor) and mask.ndim == 2
    real = mask.bool().cpu() if masked else torch.ones(ids.shape, dtype=torch.bool)
    labels = [[str(i) for i in row] for row in ids.tolist()]
    kinds = [[kind if keep else "padding" for keep in row] for row in real.tolist()]
    return TokenInfo(labels, kinds, None, real)


def numbered(tokens: TokenInfo, count: int, attended: Tensor | None = None) -> TokenInfo:
    """Return ``count`` numbered tokens for the same inputs, padding where not ``attended``; ``grid`` stays."""
    numbers = torch.arange(count).expand(len(tokens), count)
    real = None if attended is None else attended.expand(len(tokens), count)
    return replace(tokens_by_id(numbers, real, "token"), grid=tokens.grid)


def attended_keys(mask: Tensor, keys: int) -> Bool[Tensor, "batch key"] | None:
    """Return which keys some query may attend to in a mask of a layer; None where the mask does not say."""
    if mask.shape[-1] != keys:
        return None
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 10
    allowed = allowed.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape)).any(dim=-2).any(dim=1)
    return allowed.detach().cpu()
