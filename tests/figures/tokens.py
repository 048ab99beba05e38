"""Tokens and attention of one input, as small as they go."""

from types import SimpleNamespace

import numpy as np

GRID = (2, 3)
SHORT = {"class": "[CLS]", "register": "[REG]", "distillation": "[DIST]"}


def rows_that_sum_to_one(*shape, seed=0):
    raw = np.random.default_rng(seed).random(shape)
    return raw / raw.sum(axis=-1, keepdims=True)


def image_tokens(prefix=("class", "register"), grid=GRID):
    """Prefix tokens, then the patches of a grid in reading order."""
    count = grid[0] * grid[1]
    labels = [SHORT[kind] for kind in prefix]
    labels += [f"{place // grid[1]},{place % grid[1]}" for place in range(count)]
    return SimpleNamespace(labels=[labels], kinds=[[*prefix, *["patch"] * count]], grid=grid)


def text_tokens(padding=2, words=("the", "clock", "on", "the", "<s>")):
    labels = ["[CLS]", *words, "[SEP]", *["[PAD]"] * padding]
    kinds = ["class", *["word"] * len(words), "special", *["padding"] * padding]
    return SimpleNamespace(labels=[labels], kinds=[kinds], grid=None)
