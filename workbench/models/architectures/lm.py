"""A small causal language model over characters, from timm's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from timm.layers import LayerNorm
from torch import Tensor, nn

from workbench.attention import find_variant
from workbench.attention.bilateral import SINUSOIDAL_STD
from workbench.core.errors import InputError
from workbench.core.options import Numbers
from workbench.models.architectures.mixture import install_mixture
from workbench.models.architectures.sequence import mean_of_real
from workbench.models.architectures.sizes import Classes, Count, Positive, Size
from workbench.models.architectures.vit import (
    brings_positions,
    causal_variants,
    install_attention,
    make_blocks,
    run_blocks,
    share_positions,
    table_of_options,
)


def build_lm(
    *,
    vocabulary: Size = 74,
    context: Size = 128,
    embed_dim: Size = 96,
    depth: Count = 4,
    num_heads: Size = 4,
    mlp_ratio: Positive = 4.0,
    layer_scale: Positive | None = None,
    norm_eps: Positive = 1e-6,
    pos_embed_std: Positive | None = None,
    attention: str = "softmax",
    attention_layers: Numbers = None,
    attention_options: Mapping[str, Any] | None = None,
    boost: bool = False,
    experts: Count = 0,
    num_classes: Classes = 0,
) -> LanguageModel:
    """Pre-norm causal transformer with learned positions and a tied head: ids (batch, token) → next-token logits.

    ``vocabulary`` counts the tokens: 74 are the characters of the bundled prose, padding and unknown
    (``workbench.models.tokenizer``). ``context`` is the longest sequence. The defaults have 4 layers of 4 heads with
    head_dim 24 and about 467 000 parameters.

    ``attention``, ``attention_layers``, ``attention_options`` and ``boost`` as in ``build_vit``; the other
    layers have softmax attention. Every layer is causal. If every layer has its own positions (bilateral, nonlocal,
    alibi), none are added to the tokens; with nonlocal and alibi sequences may then be longer than ``context``.
    ``pos_embed_std`` is the initial standard deviation of positions. Its default for positions added to the tokens
    is that of the tokens, 0.02; for positions in the logits it is that of sinusoidal positions, √½.
    ``layer_scale`` is where LayerScale starts, one factor for each feature of an update, as in ToST; None: no
    such factors. ``norm_eps`` is what LayerNorm adds to the variance.

    With ``experts`` a mixture of that number replaces every MLP (`SwitchMlp`). With ``num_classes`` the model is a
    `TextClassifier`, with one logit per class instead of the next token's.

    Raises UnknownName for an attention or an option of it that does not exist, InputError if the head count
    does not divide the width, the attention has no causal form, or there is only one expert.
    """
    norm: Any = partial(LayerNorm, eps=norm_eps)
    attentions = attention, attention_layers, attention_options
    blocks = causal_blocks(
        context,
        (depth, embed_dim, num_heads, mlp_ratio, boost),
        attentions,
        init_values=layer_scale,
        norm_layer=norm,
    )
    learned = share_positions(blocks, SINUSOIDAL_STD if pos_embed_std is None else pos_embed_std)
    added = not brings_positions(blocks)
    if experts:
        install_mixture(blocks, experts)
    limit = context if added or learned else None
    if num_classes:
        model: LanguageModel = TextClassifier(num_classes, vocabulary, embed_dim, blocks, limit, norm_eps)
    else:
        model = LanguageModel(vocabulary, embed_dim, blocks, limit, norm_eps)
    if added:
        std = 0.02 if pos_embed_std is None else pos_embed_std
        model.pos_embed = nn.Parameter(nn.init.normal_(torch.empty(1, context, embed_dim), std=std))
    return model


def causal_blocks(
    tokens: int,
    sizes: tuple[int, int, int, float, bool],
    attention: tuple[str, Numbers, Mapping[str, Any] | None],
    **options: Any,
) -> nn.Sequential:
    """Make causal blocks: sizes as `make_blocks` takes them, attention as `build_lm`.

    ``options`` are further ones of the blocks. Raises what `build_lm` raises.
    """
    name, layers, raw_options = attention
    _, width, heads, *_ = sizes
    if width % heads:
        raise InputError(f"num_heads {heads} does not divide embed_dim {width}")
    if find_variant(name).causality == "never":
        raise InputError(
            f"attention {name!r} mixes all tokens and has no causal form; a language model takes "
            + ", ".join(causal_variants())
        )
    attention_options = table_of_options(name, raw_options)
    if not attention_options.get("causal", True):
        raise InputError("a language model reads from left to right: leave causal=False out of its attention")
    blocks = make_blocks(*sizes, **options)
    install_attention(
        blocks, name, layers, attention_options, others="softmax", num_tokens=tokens, causal=True
    )
    return blocks


class LanguageModel(nn.Module):
    """Embedding, causal blocks, norm, and a head that is the embedding again.

    ``max_length`` is the longest sequence in tokens, None without a limit; ``pos_embed`` (1, token, width) is
    added to the tokens unless it is None.
    """

    pos_embed: nn.Parameter | None

    def __init__(
        self,
        vocabulary: int,
        width: int,
        blocks: nn.Sequential,
        max_length: int | None,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.embed = nn.Embedding(vocabulary, width)
        self.register_parameter("pos_embed", None)
        self.blocks = blocks
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch token vocabulary"]:
        """Logits (nats) of the token after each; ``attention_mask`` is 0 at padding, which belongs at the end.

        Raises InputError for a sequence longer than ``max_length``.
        """
        return F.linear(self.features(input_ids, attention_mask), self.embed.weight)

    def features(
        self, input_ids: Int[Tensor, "batch token"], attention_mask: Int[Tensor, "batch token"] | None
    ) -> Float[Tensor, "batch token width"]:
        """Return the head's input."""
        tokens = input_ids.shape[1]
        if self.max_length is not None and tokens > self.max_length:
            raise InputError(
                f"this language model was built for context={self.max_length} tokens, but got {tokens}; cut the "
                "text, or build it with a longer context"
            )
        x = self.embed(input_ids)
        if self.pos_embed is not None:
            x = x + self.pos_embed[:, :tokens]
        mask = None if attention_mask is None else attention_mask.bool()
        return self.norm(run_blocks(self.blocks, x, mask))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed


class TextClassifier(LanguageModel):
    """A language model that says a class: the mean over the real tokens goes to a linear head."""

    def __init__(self, num_classes: int, vocabulary: int, width: int, *rest: Any) -> None:
        super().__init__(vocabulary, width, *rest)
        self.head = nn.Linear(width, num_classes)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch num_classes"]:
        """Logits (nats) of the classes; see `LanguageModel.forward`."""
        mask = None if attention_mask is None else attention_mask.bool()
        return self.head(mean_of_real(self.features(input_ids, attention_mask), mask))
