"""Replace the attention of a timm vision transformer by a variant, and undo it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from workbench.attention import attention_module, find_variant
from workbench.attention.base import AttentionModule
from workbench.attention.position_embeddings import (
    Embeddings,
    move_positions,
    position_embeddings,
    put_embeddings,
)
from workbench.core.errors import InputError
from workbench.core.options import Numbers, parse_numbers, ranges


@dataclass
class Replacement:
    """A report of a replacement: its layers, kept and new weights, and `undo`.

    ``kept``, ``new`` and ``dropped`` name weights by module path; a part of a joint projection is
    "qkv.weight[k]". ``new`` ones hold fresh values, ``dropped`` ones found no place (dropout and norms of
    the old module among them). ``positions`` says where the positions come in now, if the change touches
    them. As a context manager it undoes itself at the end of the block.
    """

    name: str
    layers: tuple[int, ...]
    kept: dict[str, tuple[str, ...]]
    new: dict[str, tuple[str, ...]]
    dropped: dict[str, tuple[str, ...]]
    positions: str
    _model: nn.Module
    _before: dict[str, nn.Module]
    _after: dict[str, nn.Module]
    _embeddings_before: Embeddings
    _embeddings_after: Embeddings
    _loaded: Any = None
    _checkpoint: str | None = None

    def undo(self) -> None:
        """Restore the original modules; weights learned by the new ones are lost.

        Raises InputError when one of them has been replaced again since: undo that first.
        """
        for path, module in self._after.items():
            if self._model.get_submodule(path) is not module:
                raise InputError(
                    f"{path} is no longer the {self.name!r} that was put there; undo the later change first"
                )
        for path, embedding in self._embeddings_after.items():
            if position_embeddings(self._model).get(path) is not embedding:
                raise InputError(
                    f"{path} has been replaced since {self.name!r} was put in; undo the later change first"
                )
        for path, module in self._before.items():
            self._model.set_submodule(path, module)
        put_embeddings(self._model, self._embeddings_before)
        if self._after and self._loaded is not None:
            _rename(self._loaded, self._checkpoint)
        for done in (self._after, self._before, self._embeddings_after, self._embeddings_before):
            done.clear()

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [_change(self.name, self.layers)]
        for path in self.kept:
            parts = [
                f"{what} {', '.join(names)}"
                for what, names in (
                    ("kept", self.kept[path]),
                    ("new", self.new[path]),
                    ("dropped", self.dropped[path]),
                )
                if names
            ]
            lines.append(f"  {path}: {'; '.join(parts)}")
        if self.positions:
            lines.append(f"  positions: {self.positions}")
        return "\n".join(lines)


def replace_attention(
    model: Any, name: str, layers: Numbers = None, *, seed: int = 0, **options: Any
) -> Replacement:
    """Put the variant ``name`` (see ``VARIANTS``) into layers of a timm vision transformer, in place.

    model: what ``load`` returned (its ``checkpoint`` then names the change, so that results do), or a
        ``torch.nn.Module`` whose attention is ``timm.layers.Attention`` or a variant.
    layers: None for all, numbers (negative ones count from the end), or "0,3-5".
    options: those of the variant. num_tokens is read off the model's position embedding, if any.

    Weights that mean the same in both (projections by name, proj) are copied, the rest starts fresh from
    ``seed``; the report names them. The new modules are on the old ones' device, in their dtype and mode.
    Positions count once: where every layer now brings its own (bilateral, nonlocal, alibi), the model's
    ``pos_embed`` is taken off the tokens and becomes the positions of the layers that learn theirs; where not
    every layer does any more, learned positions go back to the tokens.
    Raises UnknownName for a name or an option that does not exist, InputError for a layer that does not
    exist and for a model without such attention; nothing is replaced then.
    """
    find_variant(name)
    module = model if isinstance(model, nn.Module) else getattr(model, "module", None)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"model must be what load() returned or a torch.nn.Module, not {type(model).__name__}"
        )
    modules = [(path, child) for path, child in module.named_modules() if path and _is_replaceable(child)]
    if not modules:
        raise InputError(
            f"{type(module).__name__} has no timm.layers.Attention and no variant that could be replaced by {name!r}"
        )
    numbers = parse_numbers("layer", layers, len(modules))
    if "num_tokens" not in options and (tokens := _token_count(module)) is not None:
        options["num_tokens"] = tokens
    before = {modules[number][0]: modules[number][1] for number in numbers}
    after, kept, new, dropped = {}, {}, {}, {}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for number in numbers:
            path, old = modules[number]
            after[path] = _build(name, old, {"layer": number} | options)
            kept[path], new[path], dropped[path] = _carry_over(old, after[path])
        moved = move_positions(module, dict(modules), after)
    for path in moved.carried:
        kept[path] = (*kept[path], "positions")
        new[path] = tuple(part for part in new[path] if part != "positions")
    for path, variant in after.items():
        module.set_submodule(path, variant)
    put_embeddings(module, moved.after)
    report = Replacement(
        name, numbers, kept, new, dropped, moved.changes, module, before, after, moved.before, moved.after
    )
    if model is not module:
        report._loaded, report._checkpoint = model, model.checkpoint
        change = _change(name, numbers)
        _rename(model, f"{model.checkpoint}, {change}" if model.checkpoint else change)
    return report


def _change(name: str, layers: tuple[int, ...]) -> str:
    return f"{name} in layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"


def _rename(loaded: Any, checkpoint: str | None) -> None:
    """Another checkpoint name, and nothing remembered of the modules that were there before."""
    loaded.checkpoint = checkpoint
    for cls in type(loaded).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, cached_property) and name != "tokenizer":
                vars(loaded).pop(name, None)


def _is_replaceable(module: nn.Module) -> bool:
    from workbench.core.light_timm import timm

    return isinstance(module, (AttentionModule, timm.layers.Attention))


def _token_count(model: nn.Module) -> int | None:
    """Tokens of the model's own image size, prefix tokens included, or the longest text."""
    patches = getattr(getattr(model, "patch_embed", None), "num_patches", None)
    prefix = getattr(model, "num_prefix_tokens", None)
    if isinstance(patches, int) and isinstance(prefix, int):
        return patches + prefix
    longest = getattr(model, "max_length", None)
    return longest if isinstance(longest, int) else None


def _build(name: str, old: Any, options: dict[str, Any]) -> AttentionModule:
    qkv, proj = old.qkv, old.proj
    shapes = {"qkv_bias": qkv.bias is not None, "proj_bias": proj.bias is not None}
    if old.num_heads * old.head_dim != qkv.in_features or proj.out_features != qkv.in_features:
        raise InputError(
            f"the attention to replace has {old.num_heads} heads of width {old.head_dim} between {qkv.in_features} and "
            f"{proj.out_features} features; variants need head_dim = features / heads"
        )
    # A causal model stays causal, or hears that the variant has no such form.
    if getattr(old, "causal", False) and find_variant(name).causality != "always":
        shapes["causal"] = True
    new = attention_module(name, qkv.in_features, old.num_heads, **(shapes | options))
    return new.to(qkv.weight.device, qkv.weight.dtype).train(old.training)


def _carry_over(old: nn.Module, new: AttentionModule) -> tuple[tuple[str, ...], ...]:
    """Copy what means the same; the names of the weights that were kept, are new, and were left out.

    Beside the projections only a variant of the same class gives its names the same meaning.
    """
    source, target = _named_parts(old), _named_parts(new)
    alike = type(old) is type(new)
    kept = [
        key
        for key, value in target.items()
        if key in source and source[key].shape == value.shape and (alike or key.startswith(("qkv.", "proj.")))
    ]
    with torch.no_grad():
        for key in kept:
            target[key].copy_(source[key])
    fresh = tuple(key for key in target if key not in kept)
    unused = (*(key for key in source if key not in kept), *_active_dropout(old))
    return tuple(kept), fresh, unused


def _named_parts(module: Any) -> dict[str, Tensor]:
    """Parameters by name; a joint projection is cut into views, "qkv.weight[q]" and so on."""
    names: tuple[str, ...] = getattr(module, "projections", ("q", "k", "v"))
    parts: dict[str, Tensor] = {}
    for name, value in module.named_parameters():
        if name in ("qkv.weight", "qkv.bias"):
            rows = value.detach().chunk(len(names))
            parts |= {f"{name}[{part}]": row for part, row in zip(names, rows, strict=True)}
        else:
            parts[name] = value.detach()
    return parts


def _active_dropout(old: nn.Module) -> list[str]:
    """Dropout of the old attention, which variants do not have."""
    layers = [(name, child) for name, child in old.named_children() if isinstance(child, nn.Dropout)]
    return [f"{name}(p={child.p:g})" for name, child in layers if child.p > 0]
