"""The places where positions of a vision transformer come in when its attention changes: once, and not twice.

Most variants read them off the tokens, to which the model adds its ``pos_embed``. Those with
``brings_positions`` have positions in their logits, or leave them out on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

EMBEDDING = "pos_embed"

Embeddings = dict[str, nn.Parameter | nn.Module | None]
"""Return the attributes ``pos_embed`` by path: a parameter, or (XCiT, ToST) a module that makes the positions."""


class Moved(NamedTuple):
    """The model's position embeddings by path, as they are and as they are to be.

    With them the layers that took one over as their own positions, and a sentence about it.
    """

    before: Embeddings
    after: Embeddings
    carried: tuple[str, ...]
    changes: str


def move_positions(model: nn.Module, old: Mapping[str, Any], new: Mapping[str, Any]) -> Moved:
    """Decide where positions come in once the layers ``new`` stand in their places among all layers ``old``.

    Sets the positions of ``new`` and leaves the model alone: that is ``put_embeddings`` with ``after``.
    """
    before = position_embeddings(model)
    on_tokens = {
        path: value for path, value in before.items() if value is not None and _adds_something(value)
    }
    outside = [path for path, layer in {**old, **new}.items() if not _brings(layer)]
    carried: tuple[str, ...] = ()
    after, changes = dict(before), ""
    if not outside and on_tokens:
        carried = _onto_layers(model, on_tokens, new)
        if not carried:
            _share(old, new)
        # Zeros that stay zeros: some models cannot do without the embedding, and adding zeros changes nothing.
        after |= {path: _nothing_like(value) for path, value in on_tokens.items()}
        changes = "taken off the tokens" + (
            ", now those of the layers" if carried else "; the layers use none of it"
        )
        changes = f"{', '.join(on_tokens)} {changes}"
    elif not outside:
        _share(old, new)
    elif on_tokens and any(_brings(layer) for layer in new.values()):
        reached = ", ".join(path for path, layer in new.items() if _brings(layer))
        changes = f"{', '.join(on_tokens)} stays on the tokens, as other layers need it, and so reaches {reached} too"
    elif not on_tokens and all(_brings(layer) for layer in old.values()):
        back = _onto_tokens(model, before, old)
        after |= back
        changes = f"those of the layers, now added to the tokens as {', '.join(back)}"
        changes = changes if back else f"none reach {', '.join(outside)}"
    return Moved(before, after, carried, changes)


def position_embeddings(model: nn.Module) -> Embeddings:
    """Everything called ``pos_embed`` by path, None where the model has the place but adds nothing."""
    places = [(f"{path}.{EMBEDDING}" if path else EMBEDDING, part) for path, part in model.named_modules()]
    parameters = {path: part._parameters[EMBEDDING] for path, part in places if EMBEDDING in part._parameters}
    makers = {
        path: part._modules[EMBEDDING] for path, part in places if part._modules.get(EMBEDDING) is not None
    }
    return {**parameters, **makers}


def put_embeddings(model: nn.Module, embeddings: Embeddings) -> None:
    """Set position embeddings by path."""
    for path, value in embeddings.items():
        setattr(model.get_submodule(path.rpartition(".")[0]), EMBEDDING, value)


def _adds_something(value: nn.Parameter | nn.Module) -> bool:
    return isinstance(value, nn.Module) or bool(value.any())


def _nothing_like(value: nn.Parameter | nn.Module) -> nn.Parameter | None:
    return None if isinstance(value, nn.Module) else _parameter(torch.zeros_like(value), False)


def _onto_layers(
    model: nn.Module, on_tokens: Mapping[str, nn.Parameter | nn.Module], new: Mapping[str, Any]
) -> tuple[str, ...]:
    """Give the layers that learn positions a copy of the embedding, one for all; () where it does not fit."""
    (value, *others) = on_tokens.values()
    if others or isinstance(value, nn.Module):
        return ()
    missing, learned = _tokens_without(model), value.requires_grad
    if missing and value.ndim == 3:
        # Class and register tokens that the model adds no position to have, in the logits, one of zero.
        value = torch.cat([value.new_zeros(1, missing, value.shape[-1]), value], dim=1)
    places = tuple(
        path for path, layer in new.items() if _learns(layer) and layer.positions.shape == value.shape
    )
    shared = _parameter(value, learned)
    for path in places:
        new[path].positions = shared
    return places


def _onto_tokens(model: nn.Module, before: Embeddings, old: Mapping[str, Any]) -> Embeddings:
    """The embedding made of the positions that all layers shared; {} without these, or without a place for them."""
    learned = _learned(old)
    if len(learned) != 1 or len(before) != 1:
        return {}
    (parent, current), (value,) = *before.items(), learned
    kept = value[:, _tokens_without(model) :]
    if current is not None and current.shape != kept.shape:
        return {}
    return {parent: _parameter(kept, value.requires_grad)}


def _share(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Let the new layers share their positions, unless the old ones had different ones."""
    learned = _learned(old)
    owners = [layer for layer in new.values() if _learns(layer)]
    if len(learned) > 1 or not owners:
        return
    stay = [layer for path, layer in old.items() if path not in new and _learns(layer)]
    shared = (stay or owners)[0].positions
    for layer in owners:
        if layer.positions.shape == shared.shape:
            layer.positions = shared


def _learned(layers: Mapping[str, Any]) -> list[Tensor]:
    """The different positions that layers learn."""
    return list(
        {id(layer.positions): layer.positions for layer in layers.values() if _learns(layer)}.values()
    )


def _tokens_without(model: Any) -> int:
    """Class and register tokens that the model's embedding leaves out."""
    return model.num_prefix_tokens if getattr(model, "no_embed_class", False) else 0


def _brings(layer: Any) -> bool:
    return bool(getattr(layer, "brings_positions", False))


def _learns(layer: Any) -> bool:
    return getattr(layer, "positions", None) is not None


def _parameter(value: Tensor, requires_grad: bool) -> nn.Parameter:
    return nn.Parameter(value.detach().clone(), requires_grad=requires_grad)
