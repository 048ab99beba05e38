"""One captured layer as an analysis reads it: its real tokens, its places, its windows, its chosen heads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from workbench.captures import (
    PROJ_OUT,
    LayerRecord,
    OutputProjection,
    Projection,
    Readout,
    TokenInfo,
    attention_weights,
    find_readout,
    head_projection,
    output_projection,
)
from workbench.captures.layer_records import SITES
from workbench.captures.recomputation import TOLERANCE, check_room_for_maps
from workbench.core import null_distributions, operands
from workbench.core.errors import InputError, NothingToMeasure
from workbench.core.options import Accepted, Numbers, matching, parse_numbers
from workbench.frames.measurement import Counts

_SAME = 2e-2  # relative: the rounding of bfloat16 through a projection
_OPERANDS = {"q": "queries", "k": "keys", "v": "values"}
_AXES = {"attn": operands.ATTENTION}
_WITHOUT_FLOAT64 = ("mps",)


TwoOutcomes = Annotated[str, matching(r"[^/]+/[^/]+"), Accepted("two outcomes by name, as 'Mary/John'")]


class NotApplicable(Exception):
    """A layer that an analysis does not apply to; the message gives the reason."""


class Run(Protocol):
    """The function of `Passes` that runs the model; values are tensors, and functions at sites other than head_out."""

    def __call__(
        self, changes: Mapping[Any, Any], site: str = "head_out", *, grad: bool = False
    ) -> Tensor: ...


@dataclass
class Passes:
    """Further passes of the model over a batch, for analyses that change what heads compute.

    ``run`` takes values of a site by (layer, head), as `workbench.intervene` does, and returns the logits, (batch,
    class) or (batch, token, vocabulary); with ``grad=True`` they have gradients. ``targets`` are the classes of images,
    (batch,), or the tokens of texts, (batch, token); −1 or None where they are not known.
    """

    module: nn.Module
    run: Run
    targets: Int[Tensor, "batch ..."] | None
    outcome: Callable[[str], int]
    """Return the number of an outcome: a token or a class, by its name."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Results of passes that are the same for all layers."""

    @functools.cached_property
    def logits(self) -> Float[Tensor, "batch ..."]:
        """The logits of the unchanged model."""
        return self.run({})

    def two_outcomes(self, target: str) -> tuple[int, int]:
        """Return the numbers of the outcomes in "Mary/John". Raises `InputError` for one that the model lacks."""
        first, second = (self.outcome(name) for name in target.split("/"))
        count = self.logits.shape[-1]
        if first == second or max(first, second) >= count:
            raise InputError(f"target {target!r}: give two different ones of the model's {count} outcomes")
        return first, second

    @functools.cached_property
    def readout(self) -> Readout:
        """The last norm and the linear layer that make the logits; see `workbench.captures.find_readout`."""
        return find_readout(self.module, lambda: self.run({}))


class Rows(NamedTuple):
    """Attention rows of a layer's chosen heads, with what of them is no padding.

    ``visible`` is true at the keys that a query may attend to and that are real tokens, ``queries`` at real tokens.
    """

    weights: Float[Tensor, "batch head query key"]
    visible: Bool[Tensor, "batch head query key"]
    queries: Bool[Tensor, "batch query"]


@dataclass
class Layer:
    """One layer of one batch of inputs, with tokens, model and settings."""

    record: LayerRecord
    ids: Sequence[str]
    tokens: TokenInfo | None
    seed: int
    chosen_heads: Numbers = None
    heads: list[int] = field(default_factory=list)
    """The heads that were measured, set by `choose_heads`."""
    total_heads: int = 0
    counts: Counts = field(default_factory=Counts)
    model: nn.Module | None = None
    """The model, for analyses that read weights; None where a file is analysed."""
    images: Sequence[np.ndarray] | None = None
    """Preprocessed image of each input, (height, width, 3) in 8 bits; None for texts and unnamed inputs."""
    before: Sequence[LayerRecord] = ()
    """The captured layers of this batch that precede this layer, in call order."""
    step: int | None = None
    """Which generated token this is of: its one query is that of the last token, and keys are those until then."""
    query: int | None = None
    """Position of that query in its text."""
    passes: Passes | None = None
    """Further passes over this batch; None where no model runs, or where it is still running."""
    perturbed: LayerRecord | None = None
    """The same layer of the inputs as an analysis perturbed them, for those that compare the two."""

    @property
    def index(self) -> int:
        return self.record.index

    @property
    def key_tokens(self) -> TokenInfo | None:
        """The tokens that are attended to: those of the queries, but in cross attention."""
        return self.tokens if self.tokens is None or self.tokens.keys is None else self.tokens.keys

    def seen_by(self, cross: str) -> Layer:
        """This layer as an analysis reads it that measures nothing of cross attention, its only "keys", or "both".

        Raises `NotApplicable` where it does not measure this layer.
        """
        record = self.record
        sites = {name: getattr(record, name) for name in ("q", "k", "v", "attn", "head_out")}
        for name, tensor in sites.items():
            if tensor is not None:
                operands.check_axes(f"layer {self.index}: {name}", tensor, _AXES.get(name, operands.TOKENS))
        batch_size = next((len(value) for value in sites.values() if value is not None), len(self.ids))
        if self.ids and record.kind == "token" and record.origin is None and batch_size != len(self.ids):
            raise NotApplicable(
                f"holds {batch_size} images, windows or folded heads of {len(self.ids)} inputs, so its rows are no "
                "inputs"
            )
        if any(
            value is not None and value.ndim == 2
            for value in (record.input, record.resid_mid, record.resid_post)
        ):
            raise NotApplicable("packs the tokens of all inputs into one sequence")
        if record.source == "self" or cross == "both":
            return self
        if not cross:
            raise NotApplicable(
                "attends from its tokens to others (cross attention), and this compares tokens of one kind"
            )
        return replace(self, tokens=self.key_tokens)

    def site(self, name: str) -> Tensor:
        value = getattr(self.record, name, None)
        if value is None:
            raise InputError(
                f"layer {self.index} holds no {name!r}, which this analysis needs; capture it as well"
            )
        return value

    @property
    def noisy(self) -> LayerRecord:
        """This layer of the perturbed inputs."""
        if self.perturbed is None:
            raise InputError(
                f"layer {self.index}: this analysis runs the model on inputs and again on perturbed ones, which a file "
                "of q, k, v does not hold; give model and inputs"
            )
        return self.perturbed

    @property
    def module(self) -> nn.Module:
        """The attention module of this layer."""
        return self.need_model().get_submodule(self.record.path)

    def need_model(self) -> nn.Module:
        """Return the model. Raises `NothingToMeasure` for a file, which holds no weights."""
        if self.model is None:
            raise NothingToMeasure(
                f"layer {self.index}: this analysis reads the model's weights, which a file of q, k, v does not hold; "
                "give model and inputs"
            )
        return self.model

    def need_passes(self) -> Passes:
        """Return further passes of the model.

        Raises `InputError` for a file, where no model runs, and `NotApplicable` for windows, whose rows are no inputs.
        """
        if self.passes is None:
            raise InputError(f"layer {self.index}: this analysis runs the model again; give model and inputs")
        if self.record.origin is not None:
            raise NotApplicable("cuts the image into windows, whose rows are no inputs")
        return self.passes

    def projection(self, name: str = "v") -> Projection:
        """How the layer's input is projected to its heads; see `workbench.captures.head_projection`.

        Raises `NotApplicable` where the captured operand is not that projection of the captured input.
        """
        projection = head_projection(self.module, name, self.record.path)
        layer_input, seen = self.record.input, getattr(self.record, name)
        if layer_input is not None and seen is not None:
            projected = projection(layer_input)
            wide = torch.promote_types(seen.dtype, torch.float32)
            if (
                projected.shape != seen.shape
                or (projected.to(wide) - seen).abs().max() > _SAME * seen.abs().max()
            ):
                raise NotApplicable(
                    f"has {_OPERANDS[name]} that are not a projection of the attention's input"
                )
        return projection

    def output_projection(self) -> OutputProjection:
        """The projection W_O of all heads; see `workbench.captures.output_projection`.

        Raises `NotApplicable` where no linear layer reads the outputs of the heads.
        """
        model = self.need_model()
        if PROJ_OUT not in self.record.extra:
            raise NotApplicable("has no linear layer that reads the outputs of its heads")
        return output_projection(model, self.record)

    def count_unnormalised(self, maps: int) -> None:
        """Count the maps of a mechanism whose rows do not sum to 1."""
        if not self.record.rows_sum_to_one:
            self.counts.count(
                "attention maps have rows that do not sum to 1: measures of shares are undefined", maps, maps
            )

    def count_tiled(self, tiled: bool, lacking: str = "") -> None:
        """Count the layer among those measured in tiles; ``lacking`` names the missing results."""
        message = "layers (of every batch) were measured in tiles, sums in float64" + (
            lacking and f"; {lacking}"
        )
        self.counts.count(message, int(tiled), 1)

    def choose_heads(self, tensor: Tensor) -> Tensor:
        """The chosen heads of a tensor (batch, head, …); remembers their numbers."""
        total = self.total_heads = tensor.shape[1]
        numbers = parse_numbers("head", self.chosen_heads)
        every = range(total)
        # Layers may differ in heads: one that a layer has not got is left out there.
        self.heads = (
            [*every]
            if numbers is None
            else sorted({every[head] for head in numbers if -total <= head < total})
        )
        if not self.heads:
            raise NotApplicable(f"has only {total} heads")
        return tensor if len(self.heads) == total else tensor[:, self.heads]

    def of_queries(self, tensor: Tensor, heads: int) -> Tensor:
        """k or v of the chosen ones of ``heads`` query heads: a group of these shares one head of keys and values."""
        group = heads // tensor.shape[1]
        return tensor[:, [head // group for head in self.heads]]

    def scale(self, head_dim: int, total_heads: int) -> float | Tensor:
        """Return the scale of the chosen heads: a number, or one per head if it is learned."""
        scale = self.record.scale
        if scale is None:
            return head_dim**-0.5
        if not isinstance(scale, Tensor) or scale.numel() == 1:
            return scale
        per_head = scale.reshape(-1)
        if len(per_head) != total_heads:
            raise InputError(
                f"layer {self.index}: a scale of shape {tuple(scale.shape)} does not fit {total_heads} heads"
            )
        return per_head[self.heads]

    @property
    def head_attention_mask(self) -> Tensor | None:
        """The mask of the attention of the chosen heads, where it differs from head to head; else the one of all."""
        mask = self.record.mask
        if mask is not None and mask.ndim == 4 and mask.shape[1] == self.total_heads > 1:
            return mask[:, self.heads]
        return mask

    @property
    def window_column(self) -> dict[str, Any]:
        """The column of a value that is the mean over an input's windows; empty for a layer without windows."""
        return {} if self.record.origin is None else {"statistic": "mean"}

    def real_on(self, tensor: Tensor, axis: int = 1, keys: bool = False) -> Tensor | None:
        """Mask (batch, token) of the real tokens along an axis of a tensor, on its device; None where all are.

        With ``keys`` of the tokens that are attended to, which in cross attention are others.
        """
        real = self.real_tokens(tensor.shape[axis], keys)
        return None if real is None else real.to(tensor.device)

    def real_queries(self, like: Tensor, keys: int) -> Tensor | None:
        """Mask (batch, query) of the queries that are real tokens, on the device of ``like`` (batch, head, query, …).

        None where all are, and for the one query of a generated token.
        """
        if self.record.source == "cross":
            return self.real_on(like, 2)
        return self.real_on(like, 2, keys=True) if like.shape[2] == keys else None

    def rows(self) -> Rows:
        """Return the attention of the chosen heads, with its visible keys and real queries.

        Raises `NotApplicable` for a layer without attention between tokens.
        """
        need_token_attention(self)
        weights = self.choose_heads(token_attention(self.record))
        seen, real = visible_of(self, weights), self.real_on(weights, 3, keys=True)
        visible = torch.ones_like(weights, dtype=torch.bool) if seen is None else seen.to(weights.device)
        queries = self.real_queries(weights, weights.shape[3])
        return Rows(
            weights,
            visible if real is None else visible & real[:, None, None],
            torch.ones_like(weights[:, 0, :, 0], dtype=torch.bool) if queries is None else queries,
        )

    def head_mask(self, tensor: Tensor, padding: str = "mask") -> Tensor | None:
        """Mask of the real tokens of a tensor (batch, head, token, …) as (batch, 1, token); None for all."""
        real = None if padding == "keep" else self.real_tokens(tensor.shape[2])
        return None if real is None else real[:, None].to(tensor.device)

    def seeds(self, batch: int) -> list[int]:
        """One seed per (input or window, chosen head), in the order of a flattened batch.

        They depend on the run's seed, the input's name, layer, head and place of the window, not on batches.
        """
        origin = self.record.origin
        if origin is None:
            places: list[tuple[str | int, ...]] = [(name,) for name in self.ids]
        else:
            rows = zip(origin.image.tolist(), origin.row.tolist(), origin.column.tolist(), strict=True)
            places = [(self.ids[image], row, column) for image, row, column in rows]
        if len(places) != batch:
            raise InputError(f"layer {self.index} holds {batch} inputs; {len(places)} are named")
        return [
            null_distributions.derived_seed(self.seed, name, self.index, head, *window)
            for name, *window in places
            for head in self.heads
        ]

    def real_tokens(self, count: int, keys: bool = False) -> Tensor | None:
        """Mask (batch, token), true at real tokens; None where all ``count`` tokens are real."""
        tokens = self.key_tokens if keys else self.tokens
        if self.record.origin is not None or tokens is None:
            return None
        mask = tokens.mask
        if mask.shape[1] != count:
            if mask.all():  # patches before the class token joins them
                return None
            raise InputError(
                f"layer {self.index} has {count} tokens (axis token), but the mask of the inputs has "
                f"{mask.shape[1]}"
            )
        return None if mask.all() else mask

    def positions(self, count: int) -> Tensor | None:
        """Return coordinates of ``count`` tokens of this layer; None where unknown."""
        if self.record.origin is not None:
            return grid_positions(self.record.origin.size)
        kinds = self.token_kinds(count)
        return positions_of(kinds, self.grid) if len(kinds) == count else None

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of the patches; None for texts and where unknown."""
        return None if self.tokens is None else self.tokens.grid

    def token_kinds(self, count: int, input: int = 0) -> list[str]:
        """Kinds of the tokens of this layer: of the model's, or of its patches where the class token joins later."""
        return [kind for _, kind in self._tokens(count, input)]

    def token_labels(self, count: int, input: int = 0, keys: bool = False) -> list[str]:
        """Labels of the same tokens; with ``keys`` of those that are attended to."""
        return [label for label, _ in self._tokens(count, input, keys)]

    def _tokens(self, count: int, input: int, keys: bool = False) -> list[tuple[str, str]]:
        tokens = self.key_tokens if keys else self.tokens
        if tokens is None:
            return [(str(number), "token") for number in range(count)]
        all_tokens = list(zip(tokens.labels[input], tokens.kinds[input], strict=True))
        return (
            all_tokens if len(all_tokens) == count else [token for token in all_tokens if token[1] == "patch"]
        )

    def image(self, number: int) -> np.ndarray | None:
        """Return the preprocessed image of one input, or None."""
        return None if self.images is None else self.images[number]

    def orders(self, name: str, places: int, samples: int) -> Int[Tensor, "sample place"]:
        """Random orders of the places of one input, the same for one seed, input and layer."""
        source = null_distributions.generator(self.seed, name, self.index)
        return torch.rand(samples, places, generator=source).argsort(-1)

    def per_input(self, values: Tensor) -> Tensor:
        """Mean over the windows of each input, leaving out windows without a value."""
        origin = self.record.origin
        return values if origin is None else over_windows(values, origin.image).nanmean(1)

    def joined(self, tensor: Tensor) -> Tensor:
        """(batch, head, token, …) with the windows of one input joined along the token axis."""
        if self.record.origin is None:
            return tensor
        grouped = over_windows(tensor, self.record.origin.image)  # input, window, head, token, …
        return grouped.transpose(1, 2).flatten(2, 3)


def rows_of_tokens(
    layer: Layer, values: Float[Tensor, "batch head token"], heads: Sequence[Any], **columns: Any
) -> pd.DataFrame:
    """Return a row per input, head and real token: a value, the kind of token and a patch's position.

    Columns: input, layer, ``columns``, head, token, label, kind, row, column, value.
    """
    count, parts = values.shape[-1], []
    for number, name in enumerate(layer.ids):
        kinds = layer.token_kinds(count, number)
        tokens = pd.DataFrame({"token": range(count), "label": layer.token_labels(count, number)})
        tokens = tokens.assign(kind=kinds, row=pd.NA, column=pd.NA)
        if layer.grid is not None:
            patches = patch_places(kinds, layer.grid)
            cells = np.divmod(np.arange(len(patches)), layer.grid[1])
            tokens.loc[patches, "row"], tokens.loc[patches, "column"] = cells
        for head, row in zip(heads, values[number].cpu().numpy(), strict=True):
            parts.append(tokens.assign(input=name, head=head, value=row)[tokens["kind"] != "padding"])
    order = ["input", "layer", *columns, "head", "token", "label", "kind", "row", "column", "value"]
    rows = pd.concat(parts, ignore_index=True).assign(layer=layer.index, **columns)
    return rows[order].astype(dict.fromkeys(["head", "row", "column"], "Int64"))


def over_windows(
    values: Shaped[Tensor, "window ..."], image: Int[Tensor, " window"]
) -> Shaped[Tensor, "input window_of_input ..."]:
    """(window, …) as (input, window of that input, …); ``image`` is the input of every window."""
    image = image.to(values.device)
    inputs = int(image.max()) + 1
    return values[image.argsort(stable=True)].unflatten(0, (inputs, -1))


def token_attention(record: LayerRecord) -> Tensor:
    """Attention (batch, head, query, key) of a layer: as captured, else from its queries and keys."""
    if record.attn is not None:
        return record.attn
    if record.q is None or record.k is None:
        raise InputError(f"layer {record.index} holds neither 'attn' nor 'q' and 'k' to compute it from")
    scale = record.scale if record.scale is not None else record.q.shape[-1] ** -0.5
    return attention_weights(record.q.double(), record.k.double(), scale, record.mask)


def need_product(
    head_out: Float[Tensor, "batch head query head_dim"], product: Float[Tensor, "batch head query head_dim"]
) -> None:
    """Raise `NotApplicable` where the outputs of heads are not attention times values."""
    size = head_out.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    if not (head_out - product).abs().max() <= TOLERANCE.get(head_out.dtype, 5e-2) * size:
        raise NotApplicable("has outputs of heads that are not attention times values")


def need_room_for_maps(layer: Layer, copies: int, instead: str) -> None:
    """Raise `InputError` where ``copies`` maps of the chosen heads in float64 exceed the free memory."""
    attn, q, k = layer.record.attn, layer.record.q, layer.record.k
    formed = attn if attn is not None else q
    if formed is None or (attn is None and k is None):
        return
    chosen = layer.choose_heads(formed)
    sizes = chosen.shape if k is None or attn is not None else (*chosen.shape[:-1], k.shape[-2])
    check_room_for_maps(sizes, torch.float64, chosen.device, copies, instead)


def need_token_attention(layer: Layer) -> None:
    """Raise `NotApplicable` for attention between channels, and for mixing without any attention map."""
    if layer.record.kind == "channel":
        raise NotApplicable("attends from channel to channel and has no attention between tokens")
    if layer.record.kind != "token":
        raise NotApplicable("mixes tokens without attention from token to token")


NEVER = -1e4  # what older models add to the score of a key that may not be seen
# timm's Swin keeps tokens of a shifted window apart with an additive −100, beside a position bias of a few
# units.
WINDOW_MASK = -50.0


def visible_keys(
    mask: Tensor | None, like: Float[Tensor, "*batch head query key"], hidden_at: float = NEVER
) -> Bool[Tensor, "*batch head query key"]:
    """Which keys a query may see, broadcast to the attention map: everything without a ``mask``.

    A boolean mask is true where a query may attend. An additive one hides a key where it is at or below
    ``hidden_at``, or near the lowest number of its type, as models write "never"; a bias above that stays
    visible. (timm's Swin writes −100.) Raises `InputError` where the mask does not fit.
    """
    if mask is None:
        return torch.ones(like.shape, dtype=torch.bool, device=like.device)
    if mask.dtype != torch.bool:
        mask = mask > max(hidden_at, torch.finfo(mask.dtype).min / 10)
    try:
        return mask.expand(like.shape)
    except RuntimeError as error:
        raise InputError(
            f"mask of shape {tuple(mask.shape)} does not fit attention of shape {tuple(like.shape)} "
            "(batch, head, query, key)"
        ) from error


def visible_of(
    layer: Layer, kept: Float[Tensor, "batch head query key"]
) -> Bool[Tensor, "batch head query key"] | None:
    """Which keys the queries of the chosen heads, whose maps are ``kept``, may see; None for all of them."""
    mask = layer.head_attention_mask
    if mask is None:
        return None
    return visible_keys(mask, kept, WINDOW_MASK if layer.record.origin is not None else NEVER)


def grid_positions(grid: tuple[int, int]) -> Float[Tensor, "patch 2"]:
    """(row, column) of every patch of a grid of (rows, columns), row by row, in patches."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    return torch.stack([rows.flatten(), columns.flatten()], -1).double()


def positions_of(kinds: Sequence[str], grid: tuple[int, int] | None) -> Float[Tensor, "token space"] | None:
    """Return the position of each token: patches on their grid (others NaN), words and unknown tokens in a line.

    None where there is a patch kind but no grid that fits it, and where no token of an image is known to be a patch.
    """
    patches = torch.tensor([kind == "patch" for kind in kinds], dtype=torch.bool)
    if not patches.any() and grid is not None:
        return None
    if not patches.any():
        return torch.arange(len(kinds), dtype=torch.float64)[:, None]
    if grid is None or grid[0] * grid[1] != int(patches.sum()):
        return None
    positions = torch.full((len(kinds), 2), math.nan, dtype=torch.float64)
    positions[patches] = grid_positions(grid)
    return positions


def patch_places(kinds: Sequence[str], grid: tuple[int, int] | None) -> list[int]:
    """Places of the patches among the tokens, in reading order.

    Raises `InputError` where there are none (a text), or where they do not fill the grid.
    """
    places = [token for token, kind in enumerate(kinds) if kind == "patch"]
    if grid is None or not places:
        names = ", ".join(sorted(set(kinds))) or "nothing"
        raise InputError(
            f"there is no patch grid: the tokens are {names}; maps and masks of patches need an image model and images"
        )
    if len(places) != grid[0] * grid[1]:
        raise InputError(f"{len(places)} patches do not fill a grid of {grid[0]} × {grid[1]}")
    return places


def chosen_keys(
    layer: Layer, standardize: str, padding: str = "mask"
) -> tuple[Tensor, float | Tensor, Tensor | None]:
    """Return standardised keys of the chosen heads, with their scale and the mask of their tokens."""
    all_keys = layer.site("k")
    k = layer.choose_heads(all_keys)
    real = layer.head_mask(k, padding)
    return operands.standardize(k, standardize, real), layer.scale(k.shape[-1], all_keys.shape[1]), real


def standardize_column(standardize: str) -> dict[str, Any]:
    """The column that names how the keys were standardised; empty where they were not."""
    return {} if standardize == "none" else {"standardize": standardize}


def report_axes(
    layer: Layer,
    resolved: Int[Tensor, "batch head"],
    axes: Int[Tensor, "batch head"],
    converged: Int[Tensor, "batch head"],
    value_dim: int,
) -> None:
    """Count the heads without principal axes, with fewer than asked for, within rounding, or not converged in tiles."""
    layer.counts.add("heads have keys that are all equal and so no principal axes: no value", resolved == 0)
    layer.counts.add(
        f"heads have no more tokens than the {value_dim} columns of v: N − 1 axes are taken", axes < value_dim
    )
    layer.counts.add(
        "heads have top axes whose eigenvalues are within rounding: such axes are arbitrary",
        (resolved > 0) & (resolved < axes),
    )
    layer.counts.add(
        "heads have top axes that products in tiles did not find to 1e-10 of the largest eigenvalue (a flat spectrum): "
        "they are near to axes, and no more",
        converged < axes,
    )


def with_float64(record: LayerRecord) -> LayerRecord:
    """A layer where it can be computed in float64: on the CPU, if its own device has no such type."""
    changed = {
        site: value.cpu()
        for site in SITES
        if not (site == "mask" and record.causal)
        and isinstance(value := getattr(record, site), Tensor)
        and value.device.type in _WITHOUT_FLOAT64
    }
    if not changed:
        return record
    return replace(record, extra={name: value.cpu() for name, value in record.extra.items()}, **changed)
