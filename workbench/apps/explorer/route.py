"""The route to a prediction: what every link of attention adds to the logit of the likeliest outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from workbench.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from workbench.apps.explorer.address import Address
    from workbench.apps.explorer.material import Material
    from workbench.captures import Capture
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

LINKS = 12
"""How many links of a layer are kept for each position."""
RANDOM_LINKS = 16
"""How many random links of the same layer and query are switched off beside one that a person asked for: its null."""
_MOST_LINKS = 2_000_000
"""Heads × N² up to which the links of every query of a text are measured; beyond, those of its last query."""


def route(
    model: LoadedModel, sample: Inputs, seen: Capture, of: Literal["class", "next token"]
) -> dict[str, np.ndarray]:
    """Return the arrays ``layers.l.route.links`` and ``layers.l.route.total``; none where a logit is no sum of parts.

    The values are those of `workbench.analyze` ("logit-attribution", per="pair"); ``of`` is what the model predicts.
    """
    from workbench.runs.analyze import analyze

    assert seen.tokens is not None
    kinds, real = seen.tokens.kinds[0], seen.tokens.mask[0]
    heads = sum(layer.head_out.shape[1] for layer in seen if layer.head_out is not None)
    query = None
    if of == "class":
        if "class" not in kinds:
            return {}
        query = kinds.index("class")
    elif heads * len(kinds) ** 2 > _MOST_LINKS:
        query = int(real.nonzero()[-1])
    layers = [layer.index for layer in seen]
    try:
        rows = analyze(
            "logit-attribution", model=model, inputs=sample, layers=layers, per="pair", query=query
        )
    except InputError:  # its logits are not a linear layer of the last norm, or its stream is no sum
        return {}
    positions = 1 if of == "class" else len(kinds)
    arrays = {}
    for layer, of_layer in rows.groupby("layer"):
        links, total = _strongest(of_layer, positions)
        arrays |= {f"layers.{layer}.route.links": links, f"layers.{layer}.route.total": total}
    return arrays


def _strongest(rows: pd.DataFrame, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return by position a layer's strongest links (head, key, value), else NaN, and the sum of all."""
    heads, queries, keys = (rows[axis].unique() for axis in ("head", "query", "key"))
    values = rows["value"].to_numpy().reshape(len(heads), len(queries), len(keys)).swapaxes(0, 1)
    links = np.full((positions, LINKS, 3), np.nan, np.float32)
    total = np.full(positions, np.nan, np.float32)
    at = [0] if positions == 1 else queries
    total[at] = values.sum((1, 2))
    flat = values.reshape(len(queries), -1)
    strongest = np.argsort(-np.abs(flat), axis=1, kind="stable")[:, :LINKS]
    head, key = np.divmod(strongest, len(keys))
    fields = heads[head], keys[key], np.take_along_axis(flat, strongest, 1)
    links[at, : strongest.shape[1]] = np.stack(fields, -1)
    return links, total


def without_link(
    address: Address, material: Material, link: tuple[int, int, int], generate: int = 0
) -> dict[str, Any]:
    """Return the probability of the likeliest outcome ``before``, ``after``, and ``random``: without random links.

    ``link`` is head, query and key in the address' layer; random links have the same layer and query. Raises
    `InputError` for a link that does not exist, and for a model without predictions.
    """
    from workbench.apps.explorer import ablation
    from workbench.captures import capture

    head, query, key = link
    loaded = material.model(address)
    sample = material.continued(address, generate)[0] if generate else material.one(address)
    with material.alone(f"switching off a link of layer {address.layer}"):
        seen = capture(loaded, sample, layers=[address.layer], sites=("v", "attn", "head_out"))
        record, logits = seen[address.layer], ablation.logits_of(seen.result, loaded, sample.tokens.count)
        sizes = () if record.attn is None else tuple(record.attn.shape[1:])
        if record.attn is None or not all(
            0 <= number < size for number, size in zip(link, sizes, strict=True)
        ):
            raise InputError(f"there is no link {link} (head, query, key) in layer {address.layer}: {sizes}")
        if logits is None:
            raise InputError(
                f"{address.model} predicts no class and no next token, so no link can be switched off"
            )
        others = (record.attn[0, :, query] > 0).nonzero().cpu()
        others = others[(others != torch.tensor([head, key])).any(-1)]
        order = torch.randperm(len(others), generator=torch.Generator().manual_seed(address.seed))
        chosen = [(other, query, column) for other, column in others[order[:RANDOM_LINKS]].tolist()]
        position = 0 if len(logits) == 1 else query
        before = logits[position].double().softmax(-1)
        outcome = int(before.argmax())
        after, *random = ablation.without_links(loaded, sample, record, [link, *chosen])[
            :, position, outcome
        ].tolist()
    return {"before": before[outcome].item(), "after": after, "random": random}
