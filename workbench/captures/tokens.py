"""What the tokens of a batch are, from the model's own description and the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from workbench.captures.registry import MORE_TOKENS, SPECIAL_TOKENS

_SHORT = {"class": "[CLS]", "distillation": "[DIST]", "register": "[REG]"}


@dataclass
class TokenInfo:
    """What each token is: one list of labels and kinds per input, the patch grid, and which tokens are real.

    Kinds are class, distillation, register, patch, word, entity, padding, or token where nothing
    is known.
    ``mask`` is true for real tokens, false for padding; ``grid`` is (rows, columns) of the patches.
    """

    labels: list[list[str]]
    kinds: list[list[str]]
    grid: tuple[int, int] | None
    mask: Bool[Tensor, "batch token"]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def summary(self) -> str:
        """How many tokens of which kinds an input has, where inputs differ from the fewest to the most."""
        counts = [Counter(kinds) for kinds in self.kinds]
        said = []
        for kind in dict.fromkeys(kind for kinds in self.kinds for kind in kinds):
            low, high = min(count[kind] for count in counts), max(count[kind] for count in counts)
            grid = f" ({self.grid[0]} × {self.grid[1]})" if self.grid and kind == "patch" else ""
            said.append(f"{low if low == high else f'{low}–{high}'} {kind}{grid}")
        return f"{self.mask.shape[1]} tokens: {', '.join(said)}"

    def __getitem__(self, chosen: slice) -> TokenInfo:
        return TokenInfo(self.labels[chosen], self.kinds[chosen], self.grid, self.mask[chosen])


def token_info(model: Any, batch: Any, token_count: int | None = None) -> TokenInfo:
    """Labels, kinds, patch grid and mask of the tokens of ``batch``.

    Vision models of timm and transformers: special tokens (class, distillation, register), then patches
    labelled "row,column". Batches with ``input_ids``: words labelled by their ids, padding where the
    attention mask is 0, then what else the batch brings. Anything else:
    ``token_count`` tokens labelled by number, of kind "token".
    """
    module = model if isinstance(model, nn.Module) else getattr(model, "module", model)
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else batch
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point():
        words = tokens_by_id(ids, mask)
        for key in MORE_TOKENS if isinstance(batch, Mapping) else ():
            words = MORE_TOKENS[key](words, batch) if isinstance(batch.get(key), Tensor) else words
        return words
    pixels = batch.get("pixel_values") if isinstance(batch, Mapping) else batch
    if isinstance(pixels, Tensor) and pixels.ndim == 4:
        grid = patch_grid(module, (pixels.shape[-2], pixels.shape[-1]))
        if grid is not None:
            return image_tokens(pixels.shape[0], special_kinds(module), grid)
    masked = isinstance(mask, Tensor) and mask.ndim == 2
    size, count = mask.shape if masked else (_batch_size(batch), token_count or 0)
    return tokens_by_id(torch.arange(count).expand(size, count), mask, "token")


def image_tokens(size: int, special: tuple[str, ...], grid: tuple[int, int]) -> TokenInfo:
    """TokenInfo of ``size`` images: special tokens, then grid[0] × grid[1] patches in reading order."""
    rows, columns = grid
    labels = [_SHORT[kind] for kind in special] + [
        f"{row},{column}" for row in range(rows) for column in range(columns)
    ]
    kinds = [*special, *["patch"] * (rows * columns)]
    mask = torch.ones(size, len(kinds), dtype=torch.bool)
    return TokenInfo([list(labels) for _ in range(size)], [list(kinds) for _ in range(size)], grid, mask)


def special_kinds(module: nn.Module) -> tuple[str, ...]:
    """Kinds of the tokens before the patches, in order, for vision models of timm and transformers."""
    owner = next((child for child in module.modules() if _special_tokens(child)), module)
    found = _special_tokens(owner)
    kinds = [kind for kind in ("class", "distillation") if kind in found]
    registers = found.get("register")
    count = registers.shape[1] if registers is not None and registers.ndim == 3 else 0
    declared = getattr(module, "num_prefix_tokens", None)
    if isinstance(declared, int):
        count = max(0, declared - len(kinds)) if count == 0 else count
        kinds = kinds[:declared]
    return tuple(kinds + ["register"] * count)


def _special_tokens(module: nn.Module) -> dict[str, Tensor]:
    """The special tokens that a module itself has, by kind."""
    return {
        kind: value
        for name, kind in SPECIAL_TOKENS.items()
        if isinstance(value := getattr(module, name, None), Tensor)
    }


def patch_grid(module: nn.Module, image_size: tuple[int, int]) -> tuple[int, int] | None:
    """(rows, columns) of the patches an image of (height, width) is cut into; None where not known."""
    for child in module.modules():
        size = getattr(child, "patch_size", None)
        if size is None or (not hasattr(child, "proj") and not hasattr(child, "projection")):
            continue
        height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
        return image_size[0] // height, image_size[1] // width
    return None


def fit_tokens(tokens: TokenInfo, token_count: int | None) -> TokenInfo:
    """Text tokens lengthened to what the layers saw: models that work in windows pad the end by themselves.

    Images are left alone: a layer may see fewer tokens than the model has (windows, patches before the class
    token joins).
    """
    have = tokens.mask.shape[1]
    if token_count is None or tokens.grid is not None or token_count <= have:
        return tokens
    more = token_count - have
    return TokenInfo(
        [labels + [""] * more for labels in tokens.labels],
        [kinds + ["padding"] * more for kinds in tokens.kinds],
        None,
        torch.nn.functional.pad(tokens.mask, (0, more), value=False),
    )


def tokens_by_id(ids: Tensor, mask: Any, kind: str = "word") -> TokenInfo:
    """Tokens labelled by their ids, padding where the mask (batch, token), if there is one, is 0."""
    masked = isinstance(mask, Tensor) and mask.ndim == 2
    real = mask.bool().cpu() if masked else torch.ones(ids.shape, dtype=torch.bool)
    labels = [[str(i) for i in row] for row in ids.tolist()]
    kinds = [[kind if keep else "padding" for keep in row] for row in real.tolist()]
    return TokenInfo(labels, kinds, None, real)


def _batch_size(batch: Any) -> int:
    tensors = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else [batch]
    return next((int(value.shape[0]) for value in tensors if isinstance(value, Tensor) and value.ndim), 1)
