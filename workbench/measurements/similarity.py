"""How alike the tokens of a layer are, at its sites, and the rate at which that changes through depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.analyses import similarity
from workbench.core import null_distributions as chance
from workbench.core.errors import InputError
from workbench.core.null_distributions import Null
from workbench.frames.measurement import Measurement
from workbench.measurements.layers import Layer, NotApplicable, over_windows

STREAMS = ("input", "resid_mid", "resid_post")
PREFIX = ("class", "distillation", "register")
WITHOUT_PREFIX, CENTRED = "without prefix", "without mean"


def sites_of_similarity(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The capture sites that the option ``sites`` asks for."""
    return STREAMS if options["sites"] == "all" else (options["sites"],)


def token_similarity(layer: Layer, options: Mapping[str, Any]) -> Iterator[Measurement]:
    """Mean cosine over the pairs of tokens beside what chance gives, and their effective rank, at the chosen sites."""
    for site in sites_of_similarity(options):
        states = _of_inputs(layer, layer.site(site))
        if states.shape[1] < 2:
            raise NotApplicable("puts out a single token, which has no pairs")
        real = layer.real_tokens(states.shape[1])
        real = None if real is None else real.to(states.device)
        for prefix in _alternatives(options["prefix"]):
            kept = real if prefix else _without_prefix(layer, states, real)
            for mean in _alternatives(options["mean_token"]):
                tokens = states if mean else similarity.without_mean_token(states, kept)
                columns = {"candidate": site}
                columns |= {} if prefix else {"axis": WITHOUT_PREFIX}
                columns |= {} if mean else {"standardize": CENTRED}
                try:
                    yield _cosine(layer, tokens, kept, options, columns)
                    if options["effective_rank"]:
                        rank = similarity.effective_token_rank(tokens, kept)
                        yield Measurement("effective_rank", rank, ("input",), columns=columns)
                except InputError as error:
                    raise InputError(f"layer {layer.index}, {site}: {error}") from None


def rates_of_similarity(
    taken: Sequence[tuple[Layer, Measurement]], options: Mapping[str, Any]
) -> Iterator[Measurement]:
    """The rate of every input, fitted to its mean cosines in all measured layers, site by site.

    Of tokens less their mean there is none: their mean cosine is −1/(N−1) but for their lengths.
    """
    if options["rate"] == "none":
        return
    curves: dict[tuple[Any, ...], list[tuple[int, Measurement]]] = {}
    for layer, measurement in taken:
        if measurement.name == "token_cosine" and "standardize" not in measurement.columns:
            place = tuple(measurement.columns.get(name) for name in ("candidate", "axis"))
            curves.setdefault(place, []).append((layer.index, measurement))
    for curve in curves.values():
        if len(curve) < 2:
            raise InputError(
                "a rate of growth needs at least two layers; choose more with layers=, or rate='none'"
            )
        layers = torch.tensor([index for index, _ in curve])
        cosines = torch.stack([measurement.values.cpu() for _, measurement in curve], -1)
        columns = {name: word for name, word in curve[0][1].columns.items() if name != "null"}
        rate = similarity.growth_rate(cosines, layers)
        yield Measurement("token_cosine_rate", rate, ("input",), columns=columns, form="across")


def _of_inputs(layer: Layer, states: Tensor) -> Float[Tensor, "batch token width"]:
    """All tokens of each input: Swin keeps their grid, and cuts what its attention receives into windows."""
    if states.ndim == 4:  # (batch, row, column, width)
        states = states.flatten(1, 2)
    origin = layer.record.origin
    if origin is not None and len(states) == len(origin.image) != len(layer.ids):
        states = over_windows(states, origin.image).flatten(1, 2)
    return states


def _alternatives(word: str) -> tuple[bool, ...]:
    """Whether to keep, in each of the asked variants."""
    return {"keep": (True,), "remove": (False,), "both": (True, False)}[word]


def _without_prefix(layer: Layer, states: Tensor, real: Bool[Tensor, "batch token"] | None) -> Tensor:
    """The mask of real tokens less class, distillation and register tokens."""
    count = states.shape[1]
    kinds = layer.token_kinds(count)  # of one input: the prefix is that of all
    own = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    if len(kinds) == count:
        own[:, [place for place, kind in enumerate(kinds) if kind in PREFIX]] = False
    return own if real is None else own & real


def _cosine(
    layer: Layer,
    states: Float[Tensor, "batch token width"],
    real: Bool[Tensor, "batch token"] | None,
    options: Mapping[str, Any],
    columns: dict[str, Any],
) -> Measurement:
    observed = similarity.token_cosine_similarity(states, real)
    null = None
    if options["null_samples"] and options["null"] == "gaussian" and "standardize" not in columns:
        counts = states.shape[1] if real is None else real.sum(-1)
        null = similarity.isotropic_null(observed, counts, states.shape[-1])
        columns = columns | {"null": "isotropic"}
    elif options["null_samples"] and options["null"] == "permutation":
        null_samples = [
            similarity.permuted_null(
                tokens,
                None if real is None else real[number],
                options["null_samples"],
                chance.generator(layer.seed, name, layer.index),
            )
            for number, (name, tokens) in enumerate(zip(layer.ids, states, strict=True))
        ]
        null = Null(*(torch.stack(parts) for parts in zip(*null_samples, strict=True)))
        columns = columns | {"null": "permutation"}
    return Measurement("token_cosine", observed, ("input",), null, columns=columns)
