"""Perplexity with a sliding window, and texts with swapped words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.core.errors import InputError
from workbench.studies.finite import not_finite

if TYPE_CHECKING:
    from workbench.models.loading import LoadedModel

SWAPPED = "AAA"
"""Replacement of a word, in the word-swap attack of teo2024 (App. A.4) and abdullaev2025."""
PROSE = "bundled:prose"
DEFAULT_WINDOW = 128  # tokens, for a model without a longest text
BATCH = 64


class SwappedText(NamedTuple):
    """A text with words replaced."""

    text: str
    kept: Bool[np.ndarray, " character"]
    """Which of its characters are from the original text."""


def swap_words(text: str, share: float, rng: np.random.Generator) -> SwappedText:
    """Replace a `share` of the words of a text (rounded to whole words), chosen at random, by `SWAPPED`.

    With the same generator state a larger share includes the words of a smaller one.
    """
    if not 0 <= share <= 1:
        raise InputError(f"the share of words to swap lies between 0 and 1, got {share!r}")
    spans = [match.span() for match in re.finditer(r"\w+", text)]
    chosen = set(rng.permutation(len(spans))[: round(share * len(spans))].tolist())
    parts, kept, reached = [], [], 0
    for number, (start, end) in enumerate(spans):
        if number in chosen:
            parts += [text[reached:start], SWAPPED]
            kept += [True] * (start - reached) + [False] * len(SWAPPED)
            reached = end
    parts.append(text[reached:])
    kept += [True] * (len(text) - reached)
    return SwappedText("".join(parts), np.array(kept, dtype=bool))


@torch.no_grad()
def sliding_nll(
    module: nn.Module, ids: Int[Tensor, " token"], window: int, stride: int = 1
) -> Float[Tensor, " scored"]:
    """Return the negative log-likelihood (nats) of every token of a text but the first, given its predecessors.

    The first window scores all its positions. Then the window moves by `stride` and only its last `stride` positions
    are scored; with 1, only the last (teo2024 App. A.4). A window holds `window` tokens and predicts the same number.
    """
    if len(ids) < 2:
        raise InputError(f"a text of {len(ids)} tokens has no next token to predict; give at least 2 tokens")
    if not 1 <= stride <= window:
        raise InputError(f"the window of {window} moves by 1 to {window} tokens, got {stride}")
    ids = ids.to(next(module.parameters()).device)
    scored = [_nll(module, ids[None, : window + 1], window)[0]]
    last = len(ids) - window - 1  # where the last window begins
    starts = [*range(stride, last, stride), last] if last > 0 else []
    new = np.diff([0, *starts]).tolist()  # positions that the window before did not reach
    for group in range(0, len(starts), BATCH):
        begun, counts = starts[group : group + BATCH], new[group : group + BATCH]
        rows = torch.stack([ids[start : start + window + 1] for start in begun])
        for row, count in zip(_nll(module, rows, max(counts)), counts, strict=True):
            scored.append(row[len(row) - count :])
    return torch.cat(scored)


def _nll(module: nn.Module, rows: Int[Tensor, "n token"], last: int) -> Float[Tensor, "n last"]:
    """Return the values of the last `last` tokens of each row, on the CPU."""
    seen = rows[:, :-1]
    output = module(seen)
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        raise InputError(
            "the model gives no logits for the next token; perplexity is that of a causal language model"
        )
    likely = logits[:, -last:].float().log_softmax(-1)
    nll = -likely.gather(-1, rows[:, 1:][:, -last:, None])[..., 0].cpu()
    if not nll.isfinite().all():  # an infinite logit of another token is no harm
        raise not_finite("log-likelihoods", module, seen)
    return nll


@dataclass
class Texts:
    """The texts of one evaluation."""

    texts: list[str]
    ids: list[str]
    identity: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


def open_texts(model: LoadedModel, spec: str, n: int | str | None, seed: int) -> Texts:
    """Open `n` texts of `spec`, chosen with `seed`; each is scored separately.

    For the bundled prose only the files held out from bundled language models are used. Raises InputError for a model
    that takes no texts, and for more texts than available.
    """
    import hashlib

    from workbench.data.batches import chosen_count
    from workbench.data.pools import open_pool
    from workbench.studies.training.tasks.texts import HELD_OUT

    if model.modality != "text":
        raise InputError(f"{model.spec} takes no texts; this protocol is for language models")
    pool = open_pool(spec)
    if pool.modality != "text":
        raise InputError(f"{model.spec} takes texts, and {spec} gives images; try {PROSE} or text:FILE")
    numbers = list(range(len(pool)))
    if spec.strip() == PROSE:
        numbers = [number for number in numbers if pool.ids[number].split("/")[1].split(":")[0] in HELD_OUT]
    n = chosen_count(
        n, len(numbers), f"the held-out part of {pool.where}" if spec.strip() == PROSE else pool.where
    )
    order = np.random.default_rng(seed).permutation(len(numbers))[:n].tolist()
    samples = [pool.read(numbers[index]) for index in order]
    digest = hashlib.sha256(b"".join(sample.digest() for sample in samples)).hexdigest()
    identity = {"spec": spec.strip(), "n": n, "seed": seed, "sha256": digest}
    if spec.strip() == PROSE:
        identity["files"] = list(HELD_OUT)
    return Texts([str(sample.content) for sample in samples], [sample.id for sample in samples], identity)


def encode(model: LoadedModel, text: str, kept: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the token ids of a text, and which of them are entirely in its kept characters."""
    encoded = model.tokenizer(
        text, return_offsets_mapping=True, truncation=False, add_special_tokens=False, verbose=False
    )
    fully_kept = [bool(kept[start:end].all()) for start, end in encoded["offset_mapping"]]
    return torch.tensor(encoded["input_ids"]), torch.tensor(fully_kept)
