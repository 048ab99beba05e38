"""A small classifier of whole sequences, of tokens or of real-valued channels, from timm's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.attention.bilateral import SINUSOIDAL_STD
from workbench.core.errors import InputError
from workbench.core.options import Numbers
from workbench.models.architectures.sizes import Classes, Count, Positive, Size
from workbench.models.architectures.vit import (
    brings_positions,
    install_attention,
    make_blocks,
    refuse_causal,
    run_blocks,
    share_positions,
    table_of_options,
)


def build_sequence(
    *,
    vocabulary: Size | None = None,
    channels: Size | None = None,
    context: Size = 512,
    num_classes: Classes = 2,
    pairs: bool = False,
    embed_dim: Size = 64,
    depth: Count = 2,
    num_heads: Size = 2,
    mlp_ratio: Positive = 2.0,
    pos_embed_std: Positive | None = None,
    attention: str = "softmax",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
    boost: bool = False,
) -> SequenceClassifier:
    """Pre-norm transformer with learned positions; the mean over real tokens goes to a linear head → logits.

    Give one of ``vocabulary``, for ids (batch, token), and ``channels``, for values (batch, token, channel), which
    a linear map embeds. ``context`` is the longest sequence. The defaults are the Long Range Arena's small model,
    2 layers of 2 heads with head_dim 32 (chen2023 §5, abdullaev2025 §V-B). There is no class token: the mean is
    what those experiments take, there over padding too, here over real tokens only, so that padding changes
    nothing.

    With ``pairs`` two rows of a batch, one under the other, are an example: the same transformer reads both, and
    `PairHead` compares them, as in the Long Range Arena's Retrieval.

    ``attention``, ``attention_layers``, ``attention_options``, ``boost`` and ``pos_embed_std`` as in
    ``build_lm``, for variants that are not causal.

    Raises UnknownName for an attention or an option of it that does not exist, InputError if the head count
    does not divide the width, unless it is either vocabulary or channels, or for a causal attention.
    """
    if (vocabulary is None) == (channels is None):
        raise InputError(
            "a sequence has either tokens (vocabulary=…) or real-valued channels (channels=…); got "
            f"vocabulary={vocabulary}, channels={channels}"
        )
    if embed_dim % num_heads:
        raise InputError(f"num_heads {num_heads} does not divide embed_dim {embed_dim}")
    options = table_of_options(attention, attention_options)
    refuse_causal(attention, options, "a classifier reads its whole sequence")
    blocks = make_blocks(depth, embed_dim, num_heads, mlp_ratio, boost)
    install_attention(
        blocks, attention, attention_layers, options, others="softmax", num_tokens=context, causal=False
    )
    learned = share_positions(blocks, SINUSOIDAL_STD if pos_embed_std is None else pos_embed_std)
    added = not brings_positions(blocks)
    limit = context if added or learned else None
    if vocabulary is not None:
        model: SequenceClassifier = TokenClassifier(vocabulary, embed_dim, blocks, num_classes, limit)
    else:
        model = SeriesClassifier(channels or 0, embed_dim, blocks, num_classes, limit)
    if pairs:
        model.head = PairHead(embed_dim, round(mlp_ratio * embed_dim), num_classes)
    if added:
        std = 0.02 if pos_embed_std is None else pos_embed_std
        model.pos_embed = nn.Parameter(nn.init.normal_(torch.empty(1, context, embed_dim), std=std))
    return model


class SequenceClassifier(nn.Module):
    """Embedding, blocks, norm, mean over the real tokens, and a linear head.

    ``max_length`` is the longest sequence in tokens, None without a limit; ``pos_embed`` (1, token, width) is
    added to the tokens unless it is None.
    """

    pos_embed: nn.Parameter | None

    def __init__(
        self, embed: nn.Module, width: int, blocks: nn.Sequential, num_classes: int, max_length: int | None
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.embed = embed
        self.register_parameter("pos_embed", None)
        self.blocks = blocks
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head: nn.Module = nn.Linear(width, num_classes)

    def classify(
        self, sequences: Tensor, attention_mask: Tensor | None
    ) -> Float[Tensor, "batch num_classes"]:
        """Logits (nats) of the classes; raises InputError for sequences longer than ``max_length``."""
        tokens = sequences.shape[1]
        if self.max_length is not None and tokens > self.max_length:
            raise InputError(
                f"this classifier was built for context={self.max_length} tokens, but got {tokens}; shorten the "
                "sequence, or build it with a longer context"
            )
        x = self.embed(sequences)
        if self.pos_embed is not None:
            x = x + self.pos_embed[:, :tokens]
        mask = None if attention_mask is None else attention_mask.bool()
        return self.head(mean_of_real(self.norm(run_blocks(self.blocks, x, mask)), mask))


class TokenClassifier(SequenceClassifier):
    """``SequenceClassifier`` of token ids."""

    def __init__(
        self, vocabulary: int, width: int, blocks: nn.Sequential, num_classes: int, max_length: int | None
    ) -> None:
        embed = nn.Embedding(vocabulary, width)
        nn.init.normal_(embed.weight, std=0.02)
        super().__init__(embed, width, blocks, num_classes, max_length)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch num_classes"]:
        """``attention_mask`` is 0 at padding; see `SequenceClassifier.classify`."""
        return self.classify(input_ids, attention_mask)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed


class SeriesClassifier(SequenceClassifier):
    """``SequenceClassifier`` of real-valued channels."""

    def __init__(
        self, channels: int, width: int, blocks: nn.Sequential, num_classes: int, max_length: int | None
    ) -> None:
        super().__init__(nn.Linear(channels, width), width, blocks, num_classes, max_length)

    def forward(
        self,
        values: Float[Tensor, "batch token channel"],
        attention_mask: Int[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch num_classes"]:
        """``attention_mask`` is 0 at padding; see `SequenceClassifier.classify`."""
        return self.classify(values, attention_mask)


class PairHead(nn.Module):
    """Two-tower head: rows 2i and 2i + 1 become u, v, u v and u − v, and these the logits of example i.

    The Long Range Arena's (Tay et al. 2021) for Retrieval, with the one hidden layer of Xiong et al. 2021.
    """

    def __init__(self, width: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(4 * width, hidden)
        self.out = nn.Linear(hidden, num_classes)

    def forward(self, rows: Float[Tensor, "row width"]) -> Float[Tensor, "pair num_classes"]:
        """Logits (nats) of the classes; raises InputError for a row without the other."""
        if len(rows) % 2:
            raise InputError(
                f"this classifier compares texts two by two (0 with 1, 2 with 3, …), and got {len(rows)} of them; "
                "give an even number in every batch"
            )
        u, v = rows[0::2], rows[1::2]
        return self.out(torch.relu(self.hidden(torch.cat([u, v, u * v, u - v], dim=-1))))


def mean_of_real(x: Float[Tensor, "batch token width"], mask: Bool[Tensor, "batch token"] | None) -> Tensor:
    """Mean over the real tokens, (batch, width); zero where there is none."""
    if mask is None:
        return x.mean(1)
    real = mask[..., None]
    return torch.where(real, x, 0.0).sum(1) / real.sum(1).clamp(min=1)
