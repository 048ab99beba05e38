"""What was computed head by head, as one batch again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def stack_heads(parts: Sequence[Any], batch: Sequence[int]) -> Any:
    """Results of one form per flattened head as one result of that form, its tensors (*batch, …).

    The form is a tensor, a named tuple or a mapping of such.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.stack([*parts]).reshape((*batch, *first.shape))
    if isinstance(first, Mapping):
        return {name: stack_heads([part[name] for part in parts], batch) for name in first}
    return type(first)(*(stack_heads(column, batch) for column in zip(*parts, strict=True)))
