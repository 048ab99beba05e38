"""``find_link``: which heads link two tokens; and the links of each head with most attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from workbench.captures import Capture
from workbench.core.errors import InputError
from workbench.core.options import checked, ranges

if TYPE_CHECKING:
    from workbench.captures import LayerRecord, TokenInfo


@checked
def find_link(capture: Capture, query: int | str, key: int | str, *, input: int = 0) -> pd.DataFrame:
    """Rank the heads by the attention from one token to another, beside the other pairs of tokens of the input.

        capture = workbench.capture(model, workbench.inputs(["The animal slept because it was tired."], model))
        workbench.find_link(capture, "it", "animal").head()

    Args:
        capture: a capture with the site ``attn``. With ``v`` too, the column ``written`` is the attention times the
            length of the key's value vector, as a share of the sum over the keys: a head that attends to a token with
            a short value takes little from it.
        query: the token that attends, by its number or its label.
        key: the token attended to.
        input: which input of the capture.

    Returns one row per layer and head with a map of tokens, the strongest link first. ``attention`` is the weight, and
    ``ratio`` the weight over that of uniform attention to the keys that the query sees. ``null_mean``, ``null_low`` and
    ``null_high`` are mean, 2.5th and 97.5th percentile of this ratio over all other pairs of the same head; ``p`` is
    the share of pairs, this one included, with at least this ratio. ``same_distance`` is the mean weight of the other
    pairs with the same distance from query to key: near ``attention`` for a head that follows positions and not these
    tokens. It is NaN for cross attention.

    Raises `InputError` for a capture without maps, and for a token that is not there or stands in several places.
    """
    rows = []
    for layer in capture:
        if layer.attn is None or layer.kind != "token":
            continue
        if not 0 <= input < len(layer.attn):
            raise InputError(
                f"input {input} is not in the capture, which has inputs 0 to {len(layer.attn) - 1}"
            )
        tokens = None if capture.tokens is None else capture.tokens_of(layer.index)
        keys = tokens if tokens is None or tokens.keys is None else tokens.keys
        weights = layer.attn[input].detach().double().cpu()
        link = _place(query, tokens, input, weights.shape[-2]), _place(key, keys, input, weights.shape[-1])
        rows.extend(_layer_rows(layer, weights, link, input))
    if not rows:
        raise InputError(
            "the capture holds no attention between tokens; capture it with sites=['attn'] among others"
        )
    frame = pd.DataFrame(rows)
    if not frame["attention"].any():
        raise InputError(
            f"no head can attend from {query!r} to {key!r}: the mask hides that key, as a causal model does with later "
            "tokens; exchange query and key"
        )
    return frame.sort_values("attention", ascending=False, kind="stable", ignore_index=True)


def strongest_links(capture: Capture, count: int = 10, *, input: int = 0) -> pd.DataFrame:
    """List each head's links with the largest ratio to uniform attention; links of a token to itself are left out.

    Returns one row per layer, head and link, the strongest link of a head first: numbers of ``query`` and ``key``,
    ``query_label`` and ``key_label``, ``attention`` and ``ratio`` as in `find_link`. Padding is left out.
    """
    rows = []
    for layer in capture:
        queries = capture.tokens_of(layer.index)
        if layer.attn is None or layer.kind != "token" or queries is None:
            continue
        keys = queries.keys or queries
        weights = layer.attn[input].detach().double().cpu()
        if weights.shape[-2:] != (len(queries.labels[input]), len(keys.labels[input])):
            continue  # class attention, windows, and patches before the class token joins them
        ratios = weights * (weights > 0).sum(-1, keepdim=True)
        real = queries.mask[input].cpu()[:, None] & keys.mask[input].cpu()
        if layer.source == "self":
            real = real.clone().fill_diagonal_(False)
        best, places = ratios.masked_fill(~real, 0).flatten(1).topk(min(count, int(real.sum())))
        for head, (head_ratios, head_places) in enumerate(zip(best.tolist(), places.tolist(), strict=True)):
            for ratio, place in zip(head_ratios, head_places, strict=True):
                query, key = divmod(place, weights.shape[-1])
                rows.append(
                    {
                        "layer": layer.index,
                        "head": head,
                        "query": query,
                        "key": key,
                        "query_label": queries.labels[input][query],
                        "key_label": keys.labels[input][key],
                        "attention": weights[head, query, key].item(),
                        "ratio": ratio,
                    }
                )
    return pd.DataFrame(rows)


def _place(token: int | str, tokens: TokenInfo | None, input: int, count: int) -> int:
    """Return the number of a token."""
    if isinstance(token, int) and not isinstance(token, bool):
        if not -count <= token < count:
            raise InputError(f"token {token} is not there; tokens are 0 to {count - 1}")
        return token % count
    labels = [] if tokens is None else [label.strip() for label in tokens.labels[input]]
    positions = [number for number, label in enumerate(labels) if label == str(token).strip()]
    if len(positions) != 1:
        reason = (
            f"stands at {ranges(positions)}; give its number"
            if positions
            else "is no token of the input; give a label or number (of a word of several tokens its last one's)"
        )
        raise InputError(
            f"{token!r} {reason}; the tokens are {' '.join(labels[:40])}{' …' if len(labels) > 40 else ''}"
        )
    return positions[0]


def _layer_rows(
    layer: LayerRecord, weights: Tensor, link: tuple[int, int], input: int
) -> list[dict[str, object]]:
    """Return a row for each head of a layer."""
    visible = weights > 0
    other = visible.clone()
    other[:, *link] = False
    here = weights[:, *link]
    offsets = torch.arange(weights.shape[-1]) - torch.arange(weights.shape[-2])[:, None]
    same = other & (offsets == link[1] - link[0])
    written = _written(layer, weights, link, input)
    ratios = weights * visible.sum(-1, keepdim=True)
    rows: list[dict[str, object]] = []
    for head, others_of_head in enumerate(other):
        ratio, drawn = ratios[head, *link].item(), ratios[head][others_of_head]
        low, high = (drawn.quantile(level).item() if len(drawn) else torch.nan for level in (0.025, 0.975))
        alike = weights[head][same[head]]
        rows.append(
            {
                "layer": layer.index,
                "head": head,
                "attention": here[head].item(),
                "ratio": ratio,
                "null_mean": drawn.mean().item(),
                "null_low": low,
                "null_high": high,
                "p": (1 + int((drawn >= ratio).sum())) / (1 + len(drawn)),
                "same_distance": alike.mean().item() if layer.source == "self" else torch.nan,
                **({} if written is None else {"written": written[head].item()}),
            }
        )
    return rows


def _written(layer: LayerRecord, weights: Tensor, link: tuple[int, int], input: int) -> Tensor | None:
    """Return by head the key's share of all that the query's row writes, in lengths of value vectors."""
    if layer.v is None:
        return None
    lengths = layer.v[input].detach().double().cpu().norm(dim=-1)
    lengths = lengths.repeat_interleave(len(weights) // len(lengths), 0)
    parts = weights[:, link[0]] * lengths
    return parts[:, link[1]] / parts.sum(-1).clamp(min=torch.finfo(parts.dtype).tiny)
