"""Which sizes an architecture may have: those of the largest models, and none that only fills the memory."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le

Size = Annotated[int, Ge(1), Le(1_000_000)]
"""Of an image, a vocabulary, a context, a width; of heads and channels."""
Classes = Annotated[int, Ge(0), Le(1_000_000)]
"""0 leaves the head out."""
Count = Annotated[int, Ge(0), Le(1_000)]
"""Of layers."""
Positive = Annotated[float, Gt(0)]
