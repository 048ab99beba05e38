"""PEGASUS-X: attention within blocks, staggered in every second layer, and tokens that all attend to (transformers)."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.attention.base import merge_heads, split_heads
from workbench.captures.family import Adapter, Family, Visit
from workbench.captures.layer_records import Call
from workbench.captures.recomputation import attention_output, attention_weights


class _BlocksAndGlobalTokens(Adapter):
    """One dense call: the words, then the global tokens; a word sees its block and the global tokens, these see all.

    Staggered layers pad half a block at both ends, which nobody attends to and which is left out here.
    """

    reads_calls = False

    def read(self, visit: Visit) -> list[Call]:
        module = visit.module
        words: Tensor = visit.argument(0, "token_hidden_states")
        others: Tensor = visit.argument(1, "global_hidden_states")
        mask: Tensor = visit.argument(2, "attention_mask")
        layer = next(
            (v.module for v in visit.parents if hasattr(v.module, "stagger_blocks_this_layer")), None
        )
        pad = module.block_size // 2 if layer is not None and layer.stagger_blocks_this_layer else 0
        kept = slice(pad, words.shape[1] - pad)
        x = torch.cat([words[:, kept], others], dim=1)
        q, k, v = (
            split_heads(layer(x), module.num_heads) for layer in (module.q_proj, module.k_proj, module.v_proj)
        )
        block = (torch.arange(words.shape[1], device=x.device) // module.block_size)[kept]
        block = torch.cat([block, block.new_full((others.shape[1],), -1)])
        near = (block[:, None] == block) | (block[:, None] < 0) | (block < 0)
        real = torch.nn.functional.pad(mask[:, kept] == 0, (0, others.shape[1]), value=True)
        allowed = near & real[:, None, None, :]
        output = attention_output(attention_weights(q, k, module.scaling, allowed), v)
        of_words, of_others = module.out_proj(merge_heads(output)).split(
            [len(block) - others.shape[1], others.shape[1]], 1
        )
        call = Call(
            q, k, v, module.scaling, allowed, output, dropout=module.dropout if module.training else 0.0
        )
        call.reproduced = [(of_words, visit.output[0][:, kept]), (of_others, visit.output[1])]
        return [call]


_ATTENTION = "transformers.models.pegasus_x.modeling_pegasus_x.PegasusXGlobalLocalAttention"
PEGASUS_X = Family(adapters={_ATTENTION: _BlocksAndGlobalTokens()})
