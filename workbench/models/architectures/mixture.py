"""A sparse mixture of experts instead of an MLP (Switch Transformer, Fedus et al. 2022; teo2024 Table 11)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float, Int
from timm.layers import Mlp
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from workbench.core.errors import InputError

_CAPACITY = 1.25
"""As published for training: how many tokens of a sequence an expert takes, as a multiple of a uniform share."""
_BALANCE = 0.01
"""As published: what the load-balancing loss is multiplied by."""


class SwitchMlp(nn.Module):
    """Several MLPs: each token takes the most likely, and its output is multiplied by that probability.

    In training an expert takes the first ``capacity`` · token / experts tokens of a sequence that choose it (rounded
    up); the others pass by it. Otherwise all are taken. So no token depends on a later token, nor on another sequence.
    In training the gradient is that of the loss + ``balance`` · `load_balance`, whatever the loss.
    """

    def __init__(
        self, width: int, hidden: int, experts: int, *, capacity: float = _CAPACITY, balance: float = _BALANCE
    ) -> None:
        super().__init__()
        if experts < 2:
            raise InputError(
                f"a mixture takes at least two experts, got {experts}; leave experts out for one MLP"
            )
        self.capacity, self.balance = capacity, balance
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Mlp(width, hidden) for _ in range(experts))

    def forward(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        probability = self.router(x).softmax(dim=-1)
        weight, choice = probability.max(dim=-1)
        if self.training:
            weight = _Balanced.apply(weight, self.balance * load_balance(probability, choice))
            weight = weight * self.taken(choice)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = choice == number
            output = output.masked_scatter(chosen[..., None], expert(x[chosen]).to(x.dtype))
        return weight[..., None] * output

    def taken(self, choice: Tensor) -> Tensor:
        """Whether a token is among the first that its expert has room for, (batch, token)."""
        room = math.ceil(self.capacity * choice.shape[1] / len(self.experts))
        position = (
            nn.functional.one_hot(choice, len(self.experts)).cumsum(1).gather(2, choice[..., None])[..., 0]
        )
        return position <= room


def load_balance(probability: Float[Tensor, "batch token expert"], choice: Tensor) -> Float[Tensor, ""]:
    """experts · Σ f P over the experts: f the share of tokens that choose the expert, P its mean probability.

    1 where both are even; smallest there (Fedus et al. 2022, eq. 4).
    """
    experts = probability.shape[-1]
    share = nn.functional.one_hot(choice, experts).float().mean((0, 1))
    return experts * (share * probability.mean((0, 1))).sum()


class _Balanced(torch.autograd.Function):
    """The first argument; going back, the second gets the gradient 1, as if it were added to the loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0].new_ones(())


def install_mixture(blocks: Iterable[nn.Module], experts: int) -> None:
    """Replace the MLP of every block by a mixture of ``experts`` experts."""
    owners: list[Any] = list(blocks)
    for block in owners:
        first = block.mlp.fc1
        block.mlp = SwitchMlp(first.in_features, first.out_features, experts)
        for part in block.mlp.modules():
            init_weights_vit_timm(part, needs_reset=False)


@torch.no_grad()
def expert_choices(model: nn.Module, **batch: Tensor) -> Int[Tensor, "layer batch token"]:
    """Which expert takes each token, in every mixture of a model in their order.

    Raises `InputError` for a model without a mixture.
    """
    mixtures = [part for part in model.modules() if isinstance(part, SwitchMlp)]
    if not mixtures:
        raise InputError("the model has no mixture of experts; give one whose recipe has experts")
    choices: list[Tensor] = []
    with ExitStack() as hooks:
        for mixture in mixtures:
            hooks.enter_context(
                mixture.router.register_forward_hook(
                    lambda module, inputs, output: choices.append(output.argmax(dim=-1))
                )
            )
        model(**batch)
    return torch.stack(choices)
