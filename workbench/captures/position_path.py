"""The site ``position``: what the position embedding contributes to an attention's input along the skip path.

Every norm that lies on the way is frozen at the sample, and so linear: it keeps the mean and the size that it divided
by, and its bias belongs to the content. The rest of the input is the content.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.captures.family import class_path, merged
from workbench.captures.layout import attention_modules, block_path, first_norm, skip_path
from workbench.captures.thread_guard import in_this_thread
from workbench.core.errors import InputError

POSITION = "position"
_RMS = ("RmsNorm", "RMSNorm")
_ALIBI = ("build_alibi_tensor", "build_mpt_alibi_tensor")  # what models of transformers make its biases by


class NoAdditivePositions(InputError):
    """A model that adds no position embedding to its tokens, or not in a way that can be followed."""


class PositionPath(NamedTuple):
    """The module that adds positions to a model, and the norms and projections on the skip path from there, by path."""

    source: str
    along: tuple[str, ...]


def position_path(model: nn.Module, name: str) -> PositionPath:
    """Return the source of the positions of ``model``, and the modules on their path.

    Raises `NoAdditivePositions` saying what the model, called ``name``, has instead.
    """
    instead = positions_instead(model)
    if instead is not None:
        raise NoAdditivePositions(
            f"{name} has {instead}, and adds no position embedding to its tokens; {_TAKE}"
        )
    embeddings = merged("position_embeddings")
    sources = [
        (f"{path}.{attribute}".lstrip("."), path)
        for path, child in model.named_modules()
        for attribute in embeddings
        if isinstance(getattr(child, attribute, None), nn.Parameter | nn.Embedding)
    ]
    if not sources:
        raise NoAdditivePositions(
            f"{name} has no position embedding that is known (looked for {', '.join(sorted(embeddings))}); {_TAKE}"
        )
    source, owner = sources[0]  # of words; those of other kinds of tokens come after
    blocks = []
    for path, _ in attention_modules(model):
        block = block_path(model, path)
        norms = None if block is None else skip_path(model.get_submodule(block))
        if norms is None:
            kind = "no block" if block is None else class_path(model.get_submodule(block))
            raise NoAdditivePositions(
                f"{name} adds {source} to its tokens, but the skip path through {kind} is not known; {_TAKE}"
            )
        blocks += [f"{block}.{norm}" for norm in norms]
    modules = dict(model.named_modules())
    prefixes = [owner, owner.rpartition(".")[0], f"{owner.rpartition('.')[0]}.encoder".lstrip(".")]
    following = dict.fromkeys(attribute for after in embeddings.values() for attribute in after)
    after = [
        f"{prefix}.{attribute}".lstrip(".") for attribute in following for prefix in dict.fromkeys(prefixes)
    ]
    return PositionPath(source, tuple(path for path in dict.fromkeys([*after, *blocks]) if path in modules))


_TAKE = "take a model that does: ViT or DeiT, GPT-2, BERT or one of its descendants"


def positions_instead(model: nn.Module) -> str | None:
    """Return the positions that a model has instead of an added embedding; None where nothing else was found."""
    has_alibi = any(hasattr(child, attribute) for child in model.modules() for attribute in _ALIBI)
    if has_alibi or getattr(getattr(model, "config", None), "alibi", False):
        return "ALiBi"  # before what modules are called: Falcon builds its rotation, and leaves it unused
    for path, child in model.named_modules():
        children = {*child._modules, *child._parameters}
        for name, what in merged("other_positions").items():
            if name in children:
                return f"{what} ({path or type(model).__name__})"
        if getattr(child, "brings_positions", False):
            return f"positions in the logits of {type(child).__name__}, or none on purpose ({path})"
        if isinstance(child._modules.get("pos_embed"), nn.Module):
            maker = type(child._modules["pos_embed"]).__name__
            return f"positions that a module makes of the coordinates ({maker})"
    return None


def frozen(
    module: nn.Module, x: Float[Tensor, "batch token width"], p: Float[Tensor, "#batch token width"]
) -> Float[Tensor, "batch token out_width"]:
    """Return the output of a norm or projection for the share ``p`` of its input ``x``, in float64, frozen at x.

    LayerNorm: γ (p − mean p) / σ(x), its bias left to the rest of x; RMSNorm: γ p / rms(x); a linear layer: W p.
    The shares of x add up to the output less the bias. Raises InputError for any other module.
    """
    x, p = x.double(), p.double()
    kind = type(module).__name__
    if isinstance(module, nn.Identity):
        return p.expand_as(x)
    if isinstance(module, nn.Linear):
        return (p @ module.weight.detach().double().mT).expand(len(x), -1, -1)
    weight: Any = getattr(module, "weight", None)
    gain = 1.0 if weight is None else weight.detach().double()
    if isinstance(module, nn.LayerNorm):
        size = (x.var(-1, correction=0, keepdim=True) + module.eps).sqrt()
        return gain * (p - p.mean(-1, keepdim=True)) / size
    if kind.endswith(_RMS):
        eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        return gain * p / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    raise InputError(f"{kind} on the skip path cannot be frozen; known are LayerNorm, RMSNorm and Linear")


class Positions:
    """The position embedding of a running model, wherever it has got to; see `watch_positions`."""

    def __init__(self, model: nn.Module, name: str) -> None:
        self.model, self.name = model, name
        self.path = position_path(model, name)
        self.carried: Tensor | None = None
        self.normed: dict[nn.Module, Tensor] = {}

    def at(self, path: str) -> Float[Tensor, "batch token width"]:
        """The contribution to the input of the attention at ``path``, which has just run."""
        norm = first_norm(self.model, path)
        position = self.carried if norm is None else self.normed[norm]
        assert position is not None  # the embedding runs before any attention
        return position

    def hooks(self) -> Iterator[Any]:
        """Handles of the hooks that follow the embedding."""
        owner, _, attribute = self.path.source.rpartition(".")
        source = getattr(self.model.get_submodule(owner), attribute)
        if isinstance(source, nn.Embedding):
            yield source.register_forward_hook(in_this_thread(lambda _, args, output: self.start(output)))
        else:
            yield self.model.register_forward_pre_hook(in_this_thread(lambda _, args: self.start(source)))
        for path in self.path.along:
            yield self.model.get_submodule(path).register_forward_hook(in_this_thread(self.carry))
        norms = {first_norm(self.model, path) for path, _ in attention_modules(self.model)} - {None}
        for norm in norms:
            assert norm is not None
            yield norm.register_forward_hook(in_this_thread(self.enter))

    def start(self, embedding: Tensor) -> None:
        self.carried = embedding.detach()

    def carry(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = args[0].detach()
        self.carried = frozen(module, x, self._fitted(x))

    def enter(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = args[0].detach()
        self.normed[module] = frozen(module, x, self._fitted(x))

    def _fitted(self, x: Tensor) -> Tensor:
        """The embedding for the tokens of ``x``: special tokens that it leaves out have none."""
        p, tokens = self.carried, x.shape[1]
        assert p is not None
        have = p.shape[1]
        if have == tokens:
            return p
        owner: Any = self.model
        if getattr(owner, "no_embed_class", False) and have + owner.num_prefix_tokens == tokens:
            return nn.functional.pad(p, (0, 0, owner.num_prefix_tokens, 0))
        if have > tokens and hasattr(
            owner, "max_length"
        ):  # a language model, on a text that is not the longest
            return p[:, :tokens]
        raise InputError(
            f"{self.name}: {tokens} tokens, but {self.path.source} has positions of {have}; take images of the model's "
            "own size, and no tokens of other kinds beside the words"
        )


@contextmanager
def watch_positions(model: nn.Module, name: str) -> Generator[Positions]:
    """Follow the position embedding while the model runs; the hooks are gone afterwards."""
    positions = Positions(model, name)
    with ExitStack() as stack:
        for handle in positions.hooks():
            stack.callback(handle.remove)
        yield positions
