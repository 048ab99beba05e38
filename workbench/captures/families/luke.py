"""LUKE: words, and entities with separate queries (transformers)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.attention.base import split_heads
from workbench.captures.family import Adapter, Block, Family, Reading, Visit
from workbench.captures.labelled_tokens import TokenInfo, tokens_by_id
from workbench.captures.layer_records import Call

_MODELING = "transformers.models.luke.modeling_luke"


class _WordsAndEntities(Adapter):
    """Plain attention over words; with entities, four kinds of queries for word and entity pairs.

    With entities the tokens are words, then entities; q holds word-to-word and entity-to-entity queries, the
    extra sites q_word_to_entity and q_entity_to_word the others, and attn the softmax over both kinds of
    keys.
    """

    reads_calls = False

    def read(self, visit: Visit) -> list[Call]:
        module = visit.module
        words: Tensor = visit.argument(0, "word_hidden_states")
        entities: Tensor | None = visit.argument(1, "entity_hidden_states")
        mask: Tensor | None = visit.argument(2, "attention_mask")
        heads = module.num_attention_heads
        scale = 1 / math.sqrt(module.attention_head_size)
        x = words if entities is None else torch.cat([words, entities], dim=1)
        output = visit.output[0] if entities is None else torch.cat(visit.output[:2], dim=1)
        k, v = split_heads(module.key(x), heads), split_heads(module.value(x), heads)
        dropout = module.dropout.p if module.training else 0.0
        if entities is None or not module.use_entity_aware_attention:
            q = split_heads(module.query(x), heads)
            return [Call(q, k, v, scale, mask, split_heads(output, heads), dropout=dropout)]
        count = words.shape[1]
        q = torch.cat([module.query(words), module.e2e_query(entities)], dim=1)
        crossed = {
            "q_word_to_entity": split_heads(module.w2e_query(words), heads),
            "q_entity_to_word": split_heads(module.e2w_query(entities), heads),
        }
        q = split_heads(q, heads)
        wide = torch.promote_types(q.dtype, torch.float32)
        keys = k.to(wide)
        scores = q.to(wide) @ keys.mT
        scores[:, :, :count, count:] = crossed["q_word_to_entity"].to(wide) @ keys[:, :, count:].mT
        scores[:, :, count:, :count] = crossed["q_entity_to_word"].to(wide) @ keys[:, :, :count].mT
        scores = scores * scale if mask is None else scores * scale + mask
        attn = scores.softmax(dim=-1)
        return [
            Call(q, k, v, scale, mask, split_heads(output, heads), attn=attn, extra=crossed, dropout=dropout)
        ]


def _words_and_entities(outputs: Any) -> Tensor:
    words, entities = outputs[:2]
    return torch.cat([words, entities], dim=1) if isinstance(entities, Tensor) else words


def _with_entities(words: TokenInfo, batch: Mapping[str, Any]) -> TokenInfo:
    """The words, then the entities."""
    entities = tokens_by_id(batch["entity_ids"], batch.get("entity_attention_mask"))
    kinds = [["entity" if kind == "word" else kind for kind in row] for row in entities.kinds]
    return TokenInfo(
        [first + second for first, second in zip(words.labels, entities.labels, strict=True)],
        [first + second for first, second in zip(words.kinds, kinds, strict=True)],
        None,
        torch.cat([words.mask, entities.mask], dim=1),
    )


LUKE = Family(
    adapters={f"{_MODELING}.LukeSelfAttention": _WordsAndEntities()},
    blocks={
        f"{_MODELING}.LukeLayer": Block(
            Reading((("attention", "outputs"),), _words_and_entities),
            resid_post=Reading((("", "outputs"),), _words_and_entities),
            skip_path=("attention.output.LayerNorm", "output.LayerNorm"),
        )
    },
    batch_tokens={"entity_ids": _with_entities},
)
