"""The tokens of one input as figures name them, and the numbers of one head that belong to them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.core.errors import InputError

SPECIAL = ("class", "distillation", "register")


def as_array(tensor: Any) -> np.ndarray:
    """A tensor or array as float64."""
    values = tensor.detach().double().cpu() if hasattr(tensor, "detach") else tensor
    return np.asarray(values, dtype=np.float64)


def head_weights(attn: Any, cross: bool = False) -> np.ndarray:
    """Return attention of one head as a float64 matrix (query, key); raise `InputError` for anything else.

    Queries and keys are the same tokens, unless it is ``cross`` attention.
    """
    weights = as_array(attn)
    if weights.ndim != 2:
        raise InputError(
            f"attention of one head is (query, key); got shape {weights.shape}: choose an input and a head"
        )
    if weights.shape[0] not in (1, weights.shape[1]) and not cross:
        raise InputError(
            f"attention of {weights.shape[0]} queries to {weights.shape[1]} keys is not among the same tokens"
        )
    return weights


def not_finite(weights: np.ndarray) -> list[str]:
    """A sentence on NaN and infinite weights, as a broken model has them; none where all are finite."""
    count = int((~np.isfinite(weights)).sum())
    return [f"{count} of {weights.size} weights are not finite."] if count else []


@dataclass(frozen=True)
class TokenView:
    """The tokens of one input that a layer attends over: those of the model, or only its patches.

    ``index`` holds the number of each in the model's tokens, ``labels`` what a box or an axis shows, ``names`` what a
    sentence says, ``kinds`` as in `workbench.captures.TokenInfo`; ``grid`` is (rows, columns) of the patches.
    """

    index: list[int]
    labels: list[str]
    names: list[str]
    kinds: list[str]
    grid: tuple[int, int] | None

    @property
    def real(self) -> list[int]:
        """Places of the tokens that are not padding."""
        return [token for token, kind in enumerate(self.kinds) if kind != "padding"]

    @property
    def asking(self) -> int:
        """Place of the token whose attention a single query is: the class token, else the first."""
        return self.kinds.index("class") if "class" in self.kinds else 0

    @property
    def patches(self) -> list[int]:
        """Places of the patches, in reading order."""
        return [token for token, kind in enumerate(self.kinds) if kind not in SPECIAL]

    @property
    def special(self) -> list[int]:
        """Places of the class, distillation and register tokens."""
        return [token for token, kind in enumerate(self.kinds) if kind in SPECIAL]

    def places(self, count: int) -> list[int]:
        """Places of the tokens that ``count`` rows of the layer belong to: all, the one that asks, or the patches.

        Raises:
            InputError: this number of rows fits none of them.
        """
        for places in (list(range(len(self.index))), [self.asking], self.patches):
            if len(places) == count:
                return places
        raise InputError(f"{count} rows do not fit {len(self.index)} tokens")

    def place(self, token: int) -> int | None:
        """Return the position of one of the model's tokens; None where it takes no part in the layer."""
        return self.index.index(token) if token in self.index else None


def view_tokens(tokens: Any, input: int, count: int) -> TokenView:
    """The ``count`` tokens of one input that a layer holds, with names to call them by.

    Args:
        tokens: labels, kinds and grid of a batch, as `workbench.captures.TokenInfo` holds them.

    Raises:
        InputError: there is no such input, or ``count`` is neither the number of its tokens nor of its patches.
    """
    inputs = len(tokens.labels)
    if not -inputs <= input < inputs:
        raise InputError(f"input {input} does not exist; there are {inputs}")
    labels, kinds = list(map(str, tokens.labels[input])), list(tokens.kinds[input])
    index = list(range(len(kinds)))
    patches = [token for token in index if kinds[token] not in SPECIAL]
    if tokens.grid is not None and len(patches) != tokens.grid[0] * tokens.grid[1]:
        raise InputError(
            f"{len(kinds)} tokens do not fit {tokens.grid[0]} × {tokens.grid[1]} patches and "
            f"{len(kinds) - len(patches)} others"
        )
    if tokens.grid is not None and count == len(patches):  # before the class token joins them
        index = patches
    if count != len(index):
        raise InputError(f"the layer holds {count} tokens, but the input has {len(index)}")
    if tokens.grid is None:
        return text_view(index, labels, kinds)
    readable = [readable_label(labels[token]) for token in index]
    _, columns = tokens.grid
    order = {token: number for number, token in enumerate(patches)}
    names = [
        f"patch ({order[token] // columns}, {order[token] % columns})" if token in order else label
        for token, label in zip(index, distinct(readable), strict=True)
    ]
    return TokenView(index, readable, names, [kinds[token] for token in index], tokens.grid)


def text_view(index: Sequence[int], labels: Sequence[str], kinds: Sequence[str]) -> TokenView:
    """Tokens of a text: the number, label and kind of each."""
    readable = list(map(readable_label, labels))
    names = [f"“{label}” (token {number})" for number, label in zip(index, readable, strict=True)]
    return TokenView(list(index), readable, names, list(kinds), None)


def plain_view(count: int) -> TokenView:
    """Tokens with numbers only."""
    labels = [str(token) for token in range(count)]
    names = [f"token {label}" for label in labels]
    return TokenView(list(range(count)), labels, names, ["token"] * count, None)


def pooled_view(count: int, grid: tuple[int, int] | None) -> TokenView | None:
    """Return tokens that pool the patches of a grid, over a coarser grid of its shape; None where they fit none."""
    rows, columns = grid or (0, 1)
    down = round((count * rows / columns) ** 0.5)
    across = count // down if down else 0
    if down * across != count or down * columns != across * rows:
        return None
    return replace(plain_view(count), index=[], grid=(down, across))


_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")  # Hebrew, Arabic and others


def check_token(token: int | None, tokens: Any, input: int) -> int | None:
    """A token's number counted from 0; raises `InputError` where the input has no such token."""
    count = len(tokens.labels[input])
    if token is None:
        return None
    if not -count <= token < count:
        raise InputError(f"no token {token}; the input has {count} (0 to {count - 1})")
    return int(token) % count


def readable_label(label: str) -> str:
    """Return a label that can be read, and that plotly takes neither for markup ("<s>") nor for LaTeX ("$5 to $7").

    A label written from right to left is isolated, so that the words around it keep their order.
    """
    escaped = html.escape(label, quote=False).replace("$", "&#36;") if label.strip() else "·"
    return f"\u2068{escaped}\u2069" if _RIGHT_TO_LEFT.search(label) else escaped


def distinct(labels: Sequence[str]) -> list[str]:
    """The second "the" as "the (2)": an axis would draw equal names at one place."""
    seen: dict[str, int] = {}
    names = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        names.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return names
