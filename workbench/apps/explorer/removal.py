"""Predictions of a model without one patch or word of its input.

Occlusion after Zeiler & Fergus (2014), erasure of words after Li et al. (2016). A patch gets the mean colour of its
image; a word becomes the tokenizer's mask, unknown or padding token. The null is the effect of any other patch or
word: all of them are removed in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.apps.explorer.ablation import Prediction, at_outcome, in_rows, logits_of, run_model, tensors_of
from workbench.core.errors import InputError

if TYPE_CHECKING:
    from workbench.captures import Capture, TokenInfo
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

ROWS = 32  # inputs of one forward pass


@dataclass(frozen=True)
class Removal:
    """The outcomes of a `Prediction` without each token in turn; NaN for tokens that stay (class, special, padding)."""

    how: str
    """The replacement of a token, in words."""
    probability: Float[Tensor, "token position outcome"]
    actual_probability: Float[Tensor, "token position"]
    divergence: Float[Tensor, "token position"]
    """Kullback–Leibler divergence of the prediction without the token from that with it, in nats."""


def work(model: LoadedModel, seen: Capture) -> float:
    """Estimate the multiplications that removing every token of one input takes."""
    assert seen.tokens is not None
    size = sum(parameter.numel() for parameter in model.module.parameters())
    return float(size) * len(seen.tokens.labels[0]) ** 2


def remove_each(model: LoadedModel, sample: Inputs, seen: Capture, prediction: Prediction) -> Removal:
    """Predict without each patch or word of an input.

    Raises `InputError` for inputs whose tokens are not patches of one image or words of one text, and for a tokenizer
    that has no token to stand for none.
    """
    from workbench.captures.capturing import batch_on_device

    tokens = seen.tokens
    assert tokens is not None
    arguments = batch_on_device(sample.batch, model.module)
    if any(len(tensor) != 1 for tensor in tensors_of(arguments)):
        raise InputError(f"{model.spec} takes {sample.ids[0]} as several rows; give an input that is one row")
    tensor, rows, places, how = (_images if sample.images else _texts)(model, arguments, tokens)
    count, (positions, kept) = len(tokens.labels[0]), prediction.outcomes.shape
    logits = logits_of(seen.result, model, count)
    assert logits is not None
    before = logits.detach().double().log_softmax(-1).cpu()
    probability = torch.full((count, positions, kept), torch.nan, dtype=torch.float64)
    actual, divergence = (torch.full((count, positions), torch.nan, dtype=torch.float64) for _ in range(2))
    for first in range(0, len(places), ROWS):
        part = places[first : first + ROWS]
        after = (
            run_model(model.module, in_rows(arguments, len(part), tensor, rows(part)))
            .double()
            .log_softmax(-1)
            .cpu()
        )
        after = after if after.ndim == 3 else after[:, None]
        probability[part] = after.gather(-1, prediction.outcomes.expand(len(part), -1, -1)).exp()
        actual[part] = at_outcome(after.exp(), prediction.actual)
        divergence[part] = (before.exp() * (before - after)).sum(-1).clamp(min=0)  # below by rounding alone
    return Removal(how, probability, actual, divergence)


def _images(model: LoadedModel, arguments: Any, tokens: TokenInfo) -> tuple[Tensor, Any, list[int], str]:
    """Return the pixels, a function for rows without patches, which tokens are patches, and the replacement."""
    pixels = next((t for t in tensors_of(arguments) if t.ndim == 4 and t.is_floating_point()), None)
    places = [token for token, kind in enumerate(tokens.kinds[0]) if kind == "patch"]
    if pixels is None or tokens.grid is None or len(places) != tokens.grid[0] * tokens.grid[1]:
        raise InputError(f"the tokens of {model.spec} are not the patches of one image")
    across = tokens.grid[1]
    edges = [
        [round(i * size / parts) for i in range(parts + 1)]
        for size, parts in zip(pixels.shape[-2:], tokens.grid, strict=True)
    ]
    mean = pixels[0].mean((-2, -1), keepdim=True)

    def rows(part: list[int]) -> Tensor:
        copies = pixels.expand(len(part), -1, -1, -1).clone()
        for row, token in zip(copies, part, strict=True):
            down, right = divmod(places.index(token), across)
            row[:, edges[0][down] : edges[0][down + 1], edges[1][right] : edges[1][right + 1]] = mean
        return copies

    return pixels, rows, places, "the patch has the mean colour of the image"


def _texts(model: LoadedModel, arguments: Any, tokens: TokenInfo) -> tuple[Tensor, Any, list[int], str]:
    """Return the token ids, a function for rows without words, which tokens are words, and the replacement."""
    ids = next((t for t in tensors_of(arguments) if t.ndim == 2 and not t.is_floating_point()), None)
    kinds, real = tokens.kinds[0], tokens.mask[0].tolist()
    places = [token for token, kind in enumerate(kinds) if real[token] and kind == "word"]
    if ids is None or ids.shape[1] != len(kinds) or not places:
        raise InputError(f"the tokens of {model.spec} are not the words of one text")
    named = ("mask_token_id", "unk_token_id", "pad_token_id")
    nothing = next((n for name in named if (n := getattr(model.tokenizer, name, None)) is not None), None)
    if nothing is None:
        raise InputError(f"the tokenizer of {model.spec} has no token that stands for none")

    def rows(part: list[int]) -> Tensor:
        copies = ids.expand(len(part), -1).clone()
        copies[torch.arange(len(part)), torch.tensor(part)] = nothing
        return copies

    return ids, rows, places, f"{model.tokenizer.convert_ids_to_tokens(nothing)} stands in its place"
