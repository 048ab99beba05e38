"""GPT-2: one projection to queries, keys and values, stored as (width, feature) (transformers)."""

from workbench.captures.family import Block, Family, Fused

GPT2 = Family(
    projections={"transformers.models.gpt2.": Fused("c_attn", transposed=True)},
    blocks={"transformers.models.gpt2.modeling_gpt2.GPT2Block": Block(skip_path=())},
    position_embeddings={"wpe": ()},
)
