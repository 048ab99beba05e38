"""Attention of a layer beside the kernels of image filters, fitted to the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses.filter_kernels import KERNELS, FilterFit, fit_filter, squared_distances
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer, NotApplicable, need_token_attention
from workbench.measurements.maps import visible_of

CONTENTS = ("tokens", "heads")


def filter_kernels(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Share explained and bandwidths of every head's fit, for each filter and each kind of content.

    Tokens without a place (class, register) and padding are left out, and rows scaled to sum to 1 over the rest.
    """
    need_token_attention(layer)
    attn = layer.choose_heads(layer.site("attn"))
    count = attn.shape[-1]
    if attn.shape[-2] != count:
        raise NotApplicable("has queries that are not its keys, so that no filter runs over its tokens")
    positions = layer.positions(count)
    if positions is None:
        raise NotApplicable("has patches whose places are not known")
    kept = _kept(layer, positions, len(attn))
    if int(kept.sum(-1).min()) < 2:
        raise NotApplicable("has a single token with a place, to which every filter is the same")
    windows: dict[str, Any] = {} if layer.record.origin is None else {"statistic": "mean"}
    near = squared_distances(positions)
    alike = {name: _contents(layer, name) for name in CONTENTS if options["content"] in (name, "both")}
    for kernel, parts in KERNELS.items():
        for name, content in alike.items() if "content" in parts else ((None, None),):
            found, drawn = _fits(layer, attn, kept, kernel, near, content, options["null_samples"])
            columns = windows | {"candidate": kernel} | ({} if name is None else {"convention": name})
            layer.counts.add(
                "fits were to even attention, of which there is nothing to explain", found.share.isnan()
            )
            null_samples = {} if drawn is None else {"permutation": layer.per_input(drawn)}
            yield Measurement(
                "filter_share", layer.per_input(found.share), columns=columns, null_samples=null_samples
            )
            for part in parts:
                bandwidth = getattr(found, part)
                bandwidth = bandwidth.masked_fill(bandwidth.isinf(), torch.nan)
                unit = (
                    {} if part == "content" else {"unit": "patches" if positions.shape[-1] == 2 else "tokens"}
                )
                yield Measurement(f"filter_{part}", layer.per_input(bandwidth), columns=columns | unit)


def _kept(layer: Layer, positions: Tensor, batch: int) -> Bool[Tensor, "batch token"]:
    """Real tokens that have a place."""
    placed = positions.isfinite().all(-1).expand(batch, -1)
    real = layer.real_tokens(placed.shape[-1])
    return placed if real is None else placed & real.cpu()


def _contents(layer: Layer, name: str) -> Float[Tensor, "batch head_or_one query key"]:
    """Squared distances of what stands at every token: of the attention's input, or of each head's q and k."""
    if name == "heads":
        q, k = layer.site("q"), layer.site("k")
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # grouped queries share their keys
        return squared_distances(q[:, layer.heads], k[:, layer.heads]).cpu()
    return squared_distances(layer.site("input"))[:, None].cpu()


def _fits(
    layer: Layer,
    attn: Float[Tensor, "batch head query key"],
    kept: Bool[Tensor, "batch token"],
    kernel: str,
    near: Float[Tensor, "query key"],
    content: Float[Tensor, "batch head_or_one query key"] | None,
    null_samples: int,
) -> tuple[FilterFit, Float[Tensor, "batch head draw"] | None]:
    """The fit to every input and head, and the shares that chance explains.

    Chance is the kernel of the same tokens, places and contents together, in another order: what tokens give themselves
    stays in its place.
    """
    visible = visible_of(layer, attn)
    attn = attn.detach().double().cpu()
    found, drawn = [], []
    for place, seed in enumerate(layer.seeds(len(attn))[:: len(layer.heads)]):
        tokens = kept[place].nonzero()[:, 0]
        rows = _among(attn[place], tokens)
        seen = None if visible is None else _among(visible[place].cpu(), tokens)
        alike = None if content is None else content[place]
        found.append(_fit(rows, kernel, near, alike, seen, tokens))
        source = torch.Generator().manual_seed(seed)
        orders = torch.rand(null_samples, len(tokens), generator=source).argsort(-1)
        shares = [_fit(rows, kernel, near, alike, seen, tokens[order]).share for order in orders]
        drawn += [torch.stack(shares, -1)] if null_samples else []
    fits = FilterFit(*(torch.stack(part) for part in zip(*found, strict=True)))
    return fits, torch.stack(drawn) if null_samples else None


def _fit(
    rows: Tensor, kernel: str, near: Tensor, alike: Tensor | None, seen: Tensor | None, tokens: Tensor
) -> FilterFit:
    """A fit to the kernel of these tokens; h_y relative to their root mean square distance."""
    position = _among(near, tokens)
    if alike is None:
        return fit_filter(rows, kernel, position=position, visible=seen)
    content = _among(alike, tokens)
    fit = fit_filter(rows, kernel, position=position, content=content, visible=seen)
    return fit._replace(content=fit.content / content.mean((-2, -1)).sqrt())


def _among(pairs: Float[Tensor, "*batch query key"], tokens: Tensor) -> Float[Tensor, "*batch query key"]:
    """The rows and columns of some tokens, in their order."""
    return pairs[..., tokens, :][..., tokens]
