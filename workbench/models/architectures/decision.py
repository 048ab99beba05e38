"""Decision transformer (Chen et al. 2021): actions of an agent as what continues a sequence, from timm's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.attention.bilateral import SINUSOIDAL_STD
from workbench.core.errors import InputError
from workbench.core.options import Numbers
from workbench.models.architectures.lm import causal_blocks
from workbench.models.architectures.sizes import Count, Positive, Size
from workbench.models.architectures.vit import share_positions

KINDS = 3
"""Number of tokens in a time step: return to go, observation, action."""


def build_decision(
    *,
    observations: Size = 3,
    actions: Size = 1,
    context: Size = 20,
    horizon: Size = 1000,
    embed_dim: Size = 64,
    depth: Count = 3,
    num_heads: Size = 2,
    mlp_ratio: Positive = 4.0,
    attention: str = "softmax",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
    boost: bool = False,
) -> DecisionTransformer:
    """Pre-norm causal transformer over (return to go, observation, action) of up to ``context`` steps → actions.

    ``observations`` and ``actions`` are the numbers that an observation and an action have, ``horizon`` the longest
    episode: each of its steps has a learned embedding, which the three tokens of a step share. ``attention``,
    ``attention_layers``, ``attention_options`` and ``boost`` as in ``build_lm``.

    Raises what ``build_lm`` raises.
    """
    sizes, attentions = (
        (depth, embed_dim, num_heads, mlp_ratio, boost),
        (attention, attention_layers, attention_options),
    )
    blocks = causal_blocks(KINDS * context, sizes, attentions)
    share_positions(blocks, SINUSOIDAL_STD)
    return DecisionTransformer(observations, actions, context, horizon, embed_dim, blocks)


class DecisionTransformer(nn.Module):
    """Three embeddings, causal blocks, and the next action from the token of each observation.

    Actions lie between −1 and 1. ``max_length`` is the longest history in steps.
    """

    def __init__(
        self, observations: int, actions: int, context: int, horizon: int, width: int, blocks: nn.Sequential
    ) -> None:
        super().__init__()
        self.max_length = context
        self.embed_return = nn.Linear(1, width)
        self.embed_observation = nn.Linear(observations, width)
        self.embed_action = nn.Linear(actions, width)
        self.embed_time = nn.Embedding(horizon, width)
        self.embed_norm = nn.LayerNorm(width)
        self.blocks = blocks
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, actions)
        nn.init.normal_(self.embed_time.weight, std=0.02)

    def forward(
        self,
        returns: Float[Tensor, "batch step 1"],
        observations: Float[Tensor, "batch step observation"],
        actions: Float[Tensor, "batch step action"],
        times: Int[Tensor, "batch step"],
    ) -> Float[Tensor, "batch step action"]:
        """The action after each observation; that of ``actions`` at the same step is not seen by it.

        Steps after the last are padding that nothing before them sees. Raises InputError for a history longer than
        ``max_length`` and for a step beyond the horizon.
        """
        if times.shape[1] > self.max_length:
            raise InputError(
                f"this decision transformer was built for context={self.max_length} steps, but got {times.shape[1]}; "
                "give the last of them, or build it with a longer context"
            )
        horizon = self.embed_time.num_embeddings
        if times.numel() and int(times.max()) >= horizon:
            raise InputError(
                f"a step is number {int(times.max())}, and the horizon is {horizon} steps (from 0)"
            )
        parts = self.embed_return(returns), self.embed_observation(observations), self.embed_action(actions)
        x = (torch.stack(parts, dim=2) + self.embed_time(times)[:, :, None]).flatten(1, 2)
        x = self.norm(self.blocks(self.embed_norm(x)))
        return torch.tanh(self.head(x.unflatten(1, (-1, KINDS))[:, :, 1]))
