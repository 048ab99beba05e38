"""What single tokens and directions give, as rows or maps for figures: attention, membership, subspaces, logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.analyses.class_attention import HEAD, QUERIES, class_rows
from workbench.analyses.layer import Layer, NotApplicable, patch_places
from workbench.analyses.membership import membership_map, memberships, own_convention
from workbench.analyses.position_logits import TERMS, terms_of_layer, within_rows
from workbench.analyses.registry import ANALYSES
from workbench.analyses.softmax_sensitivity import sampled_lipschitz, sampled_perturbation
from workbench.analyses.subspaces import coherence
from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import mean_interval
from workbench.core.null_distributions import generator
from workbench.core.selection import Numbers, parse_numbers
from workbench.runs.loop import each_layer
from workbench.runs.settings import RunSettings
from workbench.runs.sources import Source, model_source, weights_source

if TYPE_CHECKING:
    from torch import nn

    from workbench.captures import Capture
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel


def attention_frame(
    model: LoadedModel, inputs: Inputs, capture: Capture, heads: Numbers = None, query: int | None = None
) -> pd.DataFrame:
    """The attention of one input as rows: layer, head, query, key (numbers and labels) and value.

    ``capture`` is of ``inputs``, whose first input is taken, with the site `attn`. ``query`` keeps one query token;
    otherwise all of them. Tokens of padding are left out. Raises `InputError` where attn was not captured, or a
    head does not exist.
    """
    tokens = capture.tokens
    if tokens is None or any(record.attn is None for record in capture):
        raise InputError("the capture holds no attention; capture it with sites=('attn',)")
    labels = tokens.labels[0]
    real = [place for place, here in enumerate(tokens.mask[0].tolist()) if here]
    parts = []
    for record in capture:
        assert record.attn is not None  # looked at above
        attn = record.attn[0].double().cpu().numpy()
        chosen = parse_numbers("head", heads, attn.shape[0])
        # Class attention has one query, the class token, which is the first of the tokens.
        queries = [0] if attn.shape[1] == 1 else real if query is None else [query]
        rows = pd.MultiIndex.from_product([chosen, queries, real], names=["head", "query", "key"]).to_frame(
            index=False
        )
        rows["value"] = attn[rows["head"], 0 if attn.shape[1] == 1 else rows["query"], rows["key"]]
        rows.insert(0, "layer", record.index)
        parts.append(rows)
    frame = pd.concat(parts, ignore_index=True)
    frame = frame.assign(
        query_label=[labels[place] for place in frame["query"]],
        key_label=[labels[place] for place in frame["key"]],
    )
    frame.insert(0, "input", inputs.ids[0])
    frame.insert(0, "model", model.spec)
    frame.attrs["provenance"] = [
        {"analysis": "attention", "model": model.identity, "inputs": inputs.identity, "seed": inputs.seed}
    ]
    return frame


def class_attention_frame(
    model: LoadedModel | nn.Module,
    inputs: Inputs | Tensor | Mapping[str, Tensor],
    layers: Numbers = None,
    query: str = "auto",
    rollout: bool = False,
) -> pd.DataFrame:
    """What the class token attends to, token by token, as rows (wu2025 Figs 5 and 10; abdullaev2025 Figs 4 and 6).

    Columns: model, input, layer, candidate (head, mean over heads, and rollout where asked for), head (empty but for
    single heads), query (how it was chosen: class, last, first or mean), key and its label and kind, the row and column
    of a patch, and value. Padding is left out; ``layers`` are all that have such a row, unless given; ``query`` as in
    ``class-attention``.

    Raises `InputError` where a layer that was asked for has no such row, or none has, and for a rollout through layers
    without attention from token to token.
    """
    if query not in QUERIES:
        raise UnknownName("query", query, QUERIES)
    settings = RunSettings(model=model, inputs=inputs, layers=None if rollout else layers)
    source = model_source(settings, ("attn",))
    asked = parse_numbers("layer", layers, source.depth) if rollout else None
    parts, left_out = [], {}

    def use(layer: Layer) -> None:
        if asked is not None and layer.index not in asked:
            return
        try:
            how, found = class_rows(layer, query, rollout)
        except NotApplicable as reason:
            left_out[layer.index] = str(reason)
            return
        tokens = _token_rows(layer, found[HEAD].shape[-1])
        places = tokens.pop("number").to_numpy(), tokens["key"].to_numpy()
        for candidate, rows in found.items():
            heads = layer.heads if candidate == HEAD else [pd.NA]
            for head, values in zip(heads, rows.cpu().numpy().swapaxes(0, 1), strict=True):
                at = {"layer": layer.index, "candidate": candidate, "head": head, "query": how}
                parts.append(tokens.assign(**at, value=values[places]))

    each_layer(source, settings, use, hold=rollout)
    if not parts or (layers is not None and left_out):
        reasons = "; ".join(f"layer {index} {reason}" for index, reason in left_out.items())
        raise InputError(f"no class attention: {reasons}")
    columns = ["model", "input", "layer", "candidate", "head", "query"]
    columns += ["key", "label", "kind", "row", "column", "value"]
    frame = pd.concat(parts, ignore_index=True).astype(dict.fromkeys(["head", "row", "column"], "Int64"))
    return _told(frame, columns, "class-attention", source)


def _told(frame: pd.DataFrame, columns: list[str], analysis: str, source: Source) -> pd.DataFrame:
    """The columns of rows measured on a source, with its model's name and where they come from."""
    frame = frame.assign(model=source.model["spec"])[columns]
    frame.attrs["provenance"] = [
        {
            "analysis": analysis,
            "model": source.model,
            "inputs": source.inputs,
            "seed": source.inputs.get("seed"),
        }
    ]
    return frame


def _token_rows(layer: Layer, count: int) -> pd.DataFrame:
    """A row per token that is no padding: input and its number in the batch, key, label, kind, and a patch's place."""
    parts = []
    for number, name in enumerate(layer.ids):
        rows = pd.DataFrame({"key": range(count), "label": layer.token_labels(count, number)})
        rows["kind"] = layer.token_kinds(count, number)
        rows = rows.assign(input=name, number=number, row=pd.NA, column=pd.NA)
        if layer.grid is not None:
            patches = patch_places(rows["kind"].tolist(), layer.grid)
            rows.loc[patches, "row"], rows.loc[patches, "column"] = np.divmod(
                np.arange(len(patches)), layer.grid[1]
            )
        parts.append(rows[rows["kind"] != "padding"])
    return pd.concat(parts, ignore_index=True)


@dataclass
class MembershipMaps:
    """Π of the patches on their grid: of each input, in each layer and head; see `membership_maps`."""

    values: Float[Tensor, "input layer head row column"]
    ids: list[str]
    layers: list[int]
    conventions: list[str]
    """By which formula each layer's membership was computed: text, code or ours."""
    model: str
    provenance: dict[str, Any]

    def frame(self) -> pd.DataFrame:
        """One row per number: model, input, layer, convention, head, row, column, value."""
        axes = {"input": self.ids, "layer": self.layers}
        names = ["input", "layer", "head", "row", "column"]
        sizes = [range(size) for size in self.values.shape[2:]]
        rows = pd.MultiIndex.from_product([*axes.values(), *sizes], names=names).to_frame(index=False)
        rows["value"] = self.values.numpy().ravel()
        rows.insert(2, "convention", rows["layer"].map(dict(zip(self.layers, self.conventions, strict=True))))
        rows.insert(0, "model", self.model)
        rows.attrs["provenance"] = [self.provenance]
        return rows


def membership_maps(
    model: LoadedModel | nn.Module,
    inputs: Inputs | Tensor,
    layers: Numbers = None,
    convention: str | None = None,
) -> MembershipMaps:
    """Membership of every patch in every head, on the patch grid (wu2025 Figs 4b and 9).

    Token statistics attention: by its own ``convention``, or the one given (as_published or as_implemented). Any other
    attention: ours, from the subspaces of its value projections. Raises `InputError` for texts, and where a layer cuts
    the image into windows, has a single head, or differs from the others in its number of heads; `membership_frame`
    takes texts.
    """
    settings = RunSettings(model=model, inputs=inputs, layers=layers)
    source = model_source(settings, ("input", "v"))
    ids, parts, maps = [], [], []
    used: dict[int, str] = {}

    def use(layer: Layer) -> None:
        if not maps:
            ids.extend(layer.ids)
        used[layer.index], found = _membership(layer, convention)
        maps.append(membership_map(found, layer.token_kinds(found.shape[-1]), layer.grid))

    def end_batch() -> None:
        heads = {len(values[0]) for values in maps}
        if len(heads) > 1:
            raise InputError(
                f"layers differ in heads: {sorted(heads)}; choose layers that are alike with layers="
            )
        parts.append(torch.stack(maps, 1).cpu())
        maps.clear()

    each_layer(source, settings, use, end_batch=end_batch)
    return MembershipMaps(
        values=torch.cat(parts),
        ids=ids,
        layers=list(used),
        conventions=list(used.values()),
        model=source.model["spec"],
        provenance={
            "analysis": "membership-maps",
            "model": source.model,
            "inputs": source.inputs,
            "seed": source.inputs.get("seed"),
        },
    )


def membership_frame(
    model: LoadedModel | nn.Module,
    inputs: Inputs | Tensor | Mapping[str, Tensor],
    layers: Numbers = None,
    convention: str | None = None,
) -> pd.DataFrame:
    """Membership of every token in every head, as rows; of texts too, which have no maps.

    Columns: model, input, layer, convention, head, token and its label and kind, the row and column of a patch, and
    value; over heads the values of a token add up to 1. Padding is left out. ``convention`` as in `membership_maps`.

    Raises `InputError` where a layer cuts the image into windows or has a single head.
    """
    settings = RunSettings(model=model, inputs=inputs, layers=layers)
    source = model_source(settings, ("input", "v"))
    parts = []

    def use(layer: Layer) -> None:
        used, found = _membership(layer, convention)
        tokens = _token_rows(layer, found.shape[-1]).rename(columns={"key": "token"})
        places = tokens.pop("number").to_numpy(), tokens["token"].to_numpy()
        at = {"layer": layer.index, "convention": used}
        parts.extend(
            tokens.assign(**at, head=head, value=values[places])
            for head, values in enumerate(found.cpu().numpy().swapaxes(0, 1))
        )

    each_layer(source, settings, use)
    columns = ["model", "input", "layer", "convention", "head"]
    columns += ["token", "label", "kind", "row", "column", "value"]
    frame = pd.concat(parts, ignore_index=True).astype(dict.fromkeys(["row", "column"], "Int64"))
    return _told(frame, columns, "membership-frame", source)


def _membership(layer: Layer, convention: str | None) -> tuple[str, Float[Tensor, "batch head token"]]:
    """A layer's Π and the convention it is computed by: the layer's own, or the one asked for where there are more."""
    try:
        found = memberships(layer, layer.site("input"))
    except NotApplicable as reason:
        raise InputError(f"layer {layer.index} {reason}; leave it out with layers=") from None
    own = own_convention(layer)
    used = own if len(found) == 1 else convention or own
    if used not in found:
        raise UnknownName("convention", str(used), found)
    return used, found[used]


def subspace_frame(
    model: LoadedModel | nn.Module,
    layers: Numbers = None,
    projection: str = "v",
    directions: int | None = 4,
    seed: int = 0,
) -> pd.DataFrame:
    """|cos| of the directions that a layer's heads read (wu2025 Fig. 11).

    Its rows have layer, head, direction, other_head, other_direction and value.
    ``directions`` of each head are picked at random, as in the paper; None takes all. ``projection`` is v, q or k;
    where one serves all, as in TSSA, that one.
    """
    settings = RunSettings(model=model, layers=layers, seed=seed)
    source = weights_source(settings)
    parts = []
    names = ["head", "direction", "other_head", "other_direction"]

    def use(layer: Layer) -> None:
        u = layer.projection(projection).weight
        dim = u.shape[-1]
        picked = [
            torch.randperm(dim, generator=generator(seed, layer.index, head))[:directions].sort().values
            for head in range(len(u))
        ]
        values = coherence(torch.stack([of_head[:, which] for of_head, which in zip(u, picked, strict=True)]))
        rows = pd.MultiIndex.from_product([range(size) for size in values.shape], names=names).to_frame(
            index=False
        )
        numbers = torch.stack(picked).numpy()
        for head, direction in (names[:2], names[2:]):
            rows[direction] = numbers[rows[head], rows[direction]]
        rows.insert(0, "layer", layer.index)
        parts.append(rows.assign(value=values.cpu().numpy().ravel()))

    each_layer(source, settings, use)
    frame = pd.concat(parts, ignore_index=True)
    frame.insert(0, "model", source.model["spec"])
    frame.attrs["provenance"] = [
        {"analysis": "subspaces", "model": source.model, "inputs": None, "seed": seed}
    ]
    return frame


def position_logit_frame(
    model: LoadedModel | nn.Module,
    inputs: Inputs | Tensor,
    layer: int = 0,
    head: int = 0,
    max_tokens: int = 80,
) -> pd.DataFrame:
    """Logits of one head for the first input and their parts, as rows: term, query, key, value (abdullaev2025 Fig. 2).

    Terms are the four `TERMS`, their ``sum``, and ``model``, the logits of the captured queries and keys, each less the
    mean of its row, which softmax does not see; NaN where the query may not attend. Tokens of padding are left out,
    and of long inputs all but the first ``max_tokens``. ``frame.attrs["off"]`` is the largest difference between the
    sum and the model's own, over all tokens, relative to the largest of the model's.

    Raises `InputError` where the model adds no positions to its tokens, naming what it has instead.
    """
    settings = RunSettings(model=model, inputs=inputs[:1], layers=[layer], heads=head, batch_size=1)
    source = model_source(settings, ANALYSES["position-logits"].sites)
    layers: list[Layer] = []
    each_layer(source, settings, layers.append, hold=True)
    (held,) = layers
    try:
        terms, allowed = terms_of_layer(held)
    except NotApplicable as reason:
        raise InputError(f"layer {layer} {reason}") from None
    terms, allowed = terms[0, 0], allowed[0, 0]
    q, k = held.site("q").double(), held.site("k").double()
    own = held.scale(q.shape[-1], q.shape[1]) * (q[:, held.heads] @ k[:, held.heads].mT)[0, 0]
    whole = torch.cat([terms, terms.sum(0, keepdim=True), own[None]])
    shown = within_rows(whole, allowed).masked_fill(~allowed, torch.nan)
    real = held.real_tokens(len(own))
    places = [place for place in range(len(own)) if real is None or real[0, place]][:max_tokens]
    axes = {"term": [*TERMS, "sum", "model"], "query": places, "key": places}
    rows = pd.MultiIndex.from_product([*axes.values()], names=[*axes]).to_frame(index=False)
    rows["value"] = shown[:, places][:, :, places].cpu().numpy().ravel()
    rows = rows.assign(model=source.model["spec"], input=held.ids[0], layer=held.index, head=held.heads[0])
    rows = rows[["model", "input", "layer", "head", *axes, "value"]]
    rows.attrs["off"] = float(((whole[len(TERMS)] - own).abs().amax() / own.abs().amax()).cpu())
    rows.attrs["provenance"] = [
        {
            "analysis": "position-logits",
            "model": source.model,
            "inputs": source.inputs,
            "seed": source.inputs.get("seed"),
        }
    ]
    return rows


def sensitivity_frame(
    tokens: Sequence[int], spreads: Sequence[float] = (1.0,), null_samples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """How far random logits N(0, spread²) and noise N(0, 1) move softmax, by N (abdullaev2025 Fig. 1).

    Columns: metric, candidate, tokens (N), spread, value, low, high, draws. ``softmax_lipschitz`` is the largest of
    all samples: slope of two vectors (pairs) and exact constant at one (local). ``softmax_perturbation`` is the
    mean over draws, of the logits and of the noise, with its 95 % interval.
    """
    rows = []
    for spread in spreads:
        for count in tokens:
            place = {"tokens": count, "spread": float(spread), "null_samples": null_samples}
            found = sampled_lipschitz(count, null_samples, seed, spread)
            for candidate, value in found._asdict().items():
                rows.append({"metric": "softmax_lipschitz", "candidate": candidate, "value": value, **place})
            moved = mean_interval(pd.Series(sampled_perturbation(count, null_samples, seed, spread)))
            rows.append({"metric": "softmax_perturbation", **moved._asdict(), **place})
    columns = ["metric", "candidate", "tokens", "spread", "value", "low", "high", "null_samples"]
    frame = pd.DataFrame(rows).reindex(columns=columns).astype({"tokens": "Int64", "null_samples": "Int64"})
    frame.attrs["provenance"] = {
        "analysis": "softmax-sampling",
        "options": {"tokens": list(tokens), "spreads": list(spreads), "null_samples": null_samples},
        "model": None,
        "inputs": None,
        "seed": seed,
    }
    return frame
