"""Tiny random models of every family, and what each says about its own attention without capture."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TEXT_LENGTH = 11


@dataclass
class Family:
    """``build`` makes the model, ``batch`` its input, ``layers`` is how many attention calls it makes.

    ``own_attention`` has None for a layer that has no attention map, and ``project`` gives q, k, v of a module
    from its input, nothing where it has none. ``rotated`` says that a rotary embedding follows, which keeps the
    length of every pair of channels.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    layers: int
    own_attention: Callable[[nn.Module, Any], list[Tensor | None]]
    project: Callable[[Any, Tensor], tuple[Tensor, ...]]
    rotated: bool = False


def heads_first(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def call(model: nn.Module, batch: Any) -> Any:
    with torch.no_grad():
        return model(**batch) if isinstance(batch, dict) else model(batch)


def first_output(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A function that gives a model with random weights, another one each time; it is built once, and copied."""

    @functools.cache
    def first() -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        model = build().eval()
        # Initial weights are so small that every attention is uniform; these make heads and tokens differ.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data = torch.randn(parameter.shape) * (1.2 * parameter[0].numel() ** -0.5)
        return model, torch.get_rng_state()

    def make() -> nn.Module:
        model, state = first()
        torch.set_rng_state(state)
        return copy.deepcopy(model)

    return make


# timm ----------------------------------------------------------------------------------------------


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def timm_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=7, **options)

    return seeded(build)


def written_out(model: nn.Module, batch: Any) -> list[Tensor]:
    """Attention maps at ``attn_drop`` of timm's unfused attention, in the order in which they are made."""
    maps: list[Tensor] = []
    before = [(m, m.fused_attn) for m in model.modules() if hasattr(m, "fused_attn")]
    handles = [
        m.attn_drop.register_forward_hook(lambda _, args, output: maps.append(output))
        for m in model.modules()
        if isinstance(getattr(m, "attn_drop", None), nn.Module)
    ]
    for m, _ in before:
        m.fused_attn = False
    call(model, batch)
    for m, flag in before:
        m.fused_attn = flag
    for handle in handles:
        handle.remove()
    return maps


def packed(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(heads_first(part, module.num_heads) for part in module.qkv(x).chunk(3, dim=-1))


def normed(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    q, k, v = packed(module, x)
    return module.q_norm(q), module.k_norm(k), v


def eva_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    if module.qkv is None:
        q, k, v = module.q_proj(x), module.k_proj(x), module.v_proj(x)
    else:
        bias = torch.cat((module.q_bias, module.k_bias, module.v_bias))
        q, k, v = nn.functional.linear(x, module.qkv.weight, bias).chunk(3, dim=-1)
    return tuple(heads_first(part, module.num_heads) for part in (q, k, v))


def beit_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    bias = torch.cat((module.q_bias, module.k_bias, module.v_bias))
    parts = nn.functional.linear(x, module.qkv.weight, bias).chunk(3, dim=-1)
    return tuple(heads_first(part, module.num_heads) for part in parts)


def xcit_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    if hasattr(module, "qkv"):
        q, k, v = packed(module, x)
        return nn.functional.normalize(q, dim=-2), nn.functional.normalize(k, dim=-2), v
    return class_projections(module, x)


def class_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    if hasattr(module, "qkv"):
        return packed(module, x)
    q, k, v = module.q(x[:, :1]), module.k(x), module.v(x)
    return tuple(heads_first(part, module.num_heads) for part in (q, k, v))


def rest_of_block(block: Any, after: Tensor) -> Tensor:
    """What the second half of a block makes of the residual stream after attention, from its parts."""
    has = {name for name, _ in block.named_children()}
    if "norm3" in has:  # XCiT: local patch interaction, then the MLP
        side = int(after.shape[1] ** 0.5)
        after = after + block.gamma3 * block.local_mp(block.norm3(after), side, side)
        return after + block.gamma2 * block.mlp(block.norm2(after))
    if type(block).__name__ == "ClassAttentionBlock":  # XCiT: the other tokens count twice, as published
        first = block.norm2(after if block.tokens_norm else after[:, :1])[:, :1]
        others = block.norm2(after)[:, 1:] if block.tokens_norm else after[:, 1:]
        return torch.cat([first + block.gamma2 * block.mlp(first), 2 * others], dim=1)
    if type(block).__name__.endswith("IstaBlock"):
        return block.mlp(block.norm2(after))
    if "norm2" in has:
        branch = block.mlp(block.norm2(after))
        gamma = getattr(block, "gamma_2", None)
        branch = block.ls2(branch) if "ls2" in has else branch
        return after + (branch if gamma is None else gamma * branch)
    if "ln_2" in has:
        return after + block.mlp(block.ln_2(after))
    if "pre_feedforward_layernorm" in has:
        return after + block.post_feedforward_layernorm(block.mlp(block.pre_feedforward_layernorm(after)))
    if "post_attention_layernorm" in has:
        return after + block.mlp(block.post_attention_layernorm(after))
    if "layernorm_after" in has:
        normed = block.layernorm_after(after)
        return after + block.mlp(normed) if "mlp" in has else block.output(block.intermediate(normed), after)
    if "sa_layer_norm" in has:
        return block.output_layer_norm(block.ffn(after) + after)
    if "full_layer_layer_norm" in has:
        return block.full_layer_layer_norm(block.ffn_output(block.activation(block.ffn(after))) + after)
    return block.output(block.intermediate(after), after)


def own_model(**architecture: Any) -> Callable[[], nn.Module]:
    """A model built here."""

    def build() -> nn.Module:
        from workbench.models import architectures

        sizes = {"img_size": 32, "in_chans": 3, "num_classes": 7, "embed_dim": 24, "depth": 3, "num_heads": 4}
        return architectures.build({**sizes, "patch_size": 8, **architecture})

    return seeded(build)


def class_attention_only(model: nn.Module, batch: Any) -> list[Tensor | None]:
    """The maps of the class-attention layers, behind blocks without one."""
    return [None] * len(model.blocks) + written_out(model, batch)


def subspace_maps(model: nn.Module, batch: Any) -> list[Tensor]:
    """softmax(w wᵀ / √head_dim) of every subspace attention, from its input."""
    inputs: list[Tensor] = []
    handles = [
        block.attn.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for block in model.blocks
    ]
    call(model, batch)
    for handle in handles:
        handle.remove()
    with torch.no_grad():
        projected = [subspaces(block.attn, x)[0] for block, x in zip(model.blocks, inputs, strict=True)]
    return [(w @ w.mT / w.shape[-1] ** 0.5).softmax(-1) for w in projected]


def subspaces(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return (heads_first(module.qkv(x), module.num_heads),) * 3


def only_class_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return () if hasattr(module, "temp") else class_projections(module, x)


VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 4}
VISION = [
    Family("vit", timm_model("vit_tiny_patch16_224", **VIT), images, 3, written_out, packed),
    Family("vit-qk-norm", timm_model("vit_tiny_patch16_224", qk_norm=True, **VIT), images, 3, written_out,
           normed),
    Family("deit", timm_model("deit_tiny_patch16_224", **VIT), images, 3, written_out, packed),
    Family(
        "deit-distilled", timm_model("deit_tiny_distilled_patch16_224", **VIT), images, 3, written_out, packed
    ),
    Family("beit", timm_model("beit_base_patch16_224", **VIT), images, 3, written_out, beit_projections),
    Family("eva", timm_model("eva02_tiny_patch14_224", **VIT | {"num_heads": 3}), images, 3,
           written_out, eva_projections, rotated=True),
    Family(
        "swin",
        timm_model(
            "swin_tiny_patch4_window7_224",
            img_size=32, patch_size=2, window_size=4, embed_dim=12, depths=(2, 1), num_heads=(2, 3),
        ),
        images, 3, written_out, packed,
    ),
    Family(
        "xcit",
        timm_model("xcit_nano_12_p8_224", img_size=32, embed_dim=24, depth=3, num_heads=4, cls_attn_layers=2),
        images, 5, written_out, xcit_projections,
    ),
    Family(
        "xcit-tokens-norm",
        timm_model("xcit_small_12_p8_224", img_size=32, embed_dim=24, depth=1, num_heads=3, tokens_norm=True),
        images, 3, written_out, xcit_projections,
    ),
    Family(
        "cait",
        timm_model(
            "cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=4, init_values=0.5
        ),
        images, 5, written_out, class_projections,
    ),
    Family("tost", own_model(name="tost", attention_options={"convention": "as_implemented"}), images, 5,
           class_attention_only, only_class_projections),
    Family("tost-ista", own_model(name="tost", mlp="ista", depth=1), images, 3, class_attention_only,
           only_class_projections),
    Family("crate", own_model(name="crate"), images, 3, subspace_maps, subspaces),
]  # fmt: skip


# transformers --------------------------------------------------------------------------------------


def words() -> dict[str, Tensor]:
    """Three texts of lengths 11, 8 and 5, padded at the end."""
    ids = torch.randint(5, 50, (3, TEXT_LENGTH), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    mask[2, 5:] = 0
    return {"input_ids": torch.where(mask.bool(), ids, 1), "attention_mask": mask}


def global_words() -> dict[str, Tensor]:
    batch = words()
    marks = torch.zeros_like(batch["input_ids"])
    marks[:, 0] = 1
    marks[0, 6] = 1
    return batch | {"global_attention_mask": marks}


def words_and_entities() -> dict[str, Tensor]:
    positions = torch.full((3, 2, 4), -1)
    positions[:, 0, :2] = torch.tensor([1, 2])
    positions[:, 1, 0] = 3
    entity_mask = torch.tensor([[1, 1], [1, 0], [1, 1]])
    return words() | {
        "entity_ids": torch.tensor([[1, 2], [3, 0], [2, 4]]),
        "entity_position_ids": positions,
        "entity_attention_mask": entity_mask,
    }


def hf_model(name: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**options))

    return seeded(build)


def own_eager(model: nn.Module, batch: Any) -> list[Tensor]:
    """The maps a transformers model returns itself, run eagerly."""
    before = model.config._attn_implementation
    if model._can_set_attn_implementation():
        model.set_attn_implementation("eager")
    options = batch if isinstance(batch, dict) else {"pixel_values": batch}
    with torch.no_grad():
        maps = model(**options, output_attentions=True, return_dict=True).attentions
    if model._can_set_attn_implementation():
        model.set_attn_implementation(before)
    return list(maps)


def own_longformer(model: nn.Module, batch: Any) -> list[Tensor]:
    """Longformer's bands and global columns and rows, put into dense maps."""
    with torch.no_grad():
        result = model(**batch, output_attentions=True, return_dict=True)
    marks = batch.get("global_attention_mask", torch.zeros_like(batch["input_ids"])).bool()
    count = marks.sum(dim=1).max().item()
    dense = []
    for layer, band in enumerate(result.attentions):  # (batch, head, query, globals + window + 1)
        size, heads, tokens, _ = band.shape
        full = torch.zeros(size, heads, tokens, tokens)
        half = model.config.attention_window[layer] // 2
        for b in range(size):
            places = marks[b].nonzero().flatten().tolist()
            for query in range(tokens):
                for offset in range(-half, half + 1):
                    if 0 <= query + offset < tokens:
                        full[b, :, query, query + offset] += band[b, :, query, count + half + offset]
                for number, place in enumerate(places):
                    full[b, :, query, place] += band[b, :, query, number]
            for number, place in enumerate(places):
                full[b, :, place] = result.global_attentions[layer][b, :, :tokens, number]
        dense.append(full)
    return dense


def bert_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        heads_first(p(x), module.num_attention_heads) for p in (module.query, module.key, module.value)
    )


def longformer_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(heads_first(p(x), module.num_heads) for p in (module.query, module.key, module.value))


def distilbert_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(heads_first(p(x), module.n_heads) for p in (module.q_lin, module.k_lin, module.v_lin))


def gpt2_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(heads_first(part, module.num_heads) for part in module.c_attn(x).chunk(3, dim=-1))


def llama_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    layers = (module.q_proj, module.k_proj, module.v_proj)
    return tuple(heads_first(p(x), p.out_features // module.head_dim) for p in layers)


def vit_projections(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    first_releases = hasattr(module, "query")  # of transformers 5
    names = ("query", "key", "value") if first_releases else ("q_proj", "k_proj", "v_proj")
    layers = [getattr(module, name) for name in names]
    return tuple(heads_first(p(x), module.config.num_attention_heads) for p in layers)


BERT = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 34, "max_position_embeddings": 40, "pad_token_id": 1,
}  # fmt: skip
TEXT = [
    Family("bert", hf_model("BertModel", "BertConfig", **BERT), words, 2, own_eager, bert_projections),
    Family(
        "minilm",
        hf_model("BertModel", "BertConfig", **BERT | {"hidden_size": 36, "num_hidden_layers": 6}),
        words, 6, own_eager, bert_projections,
    ),
    Family("roberta", hf_model("RobertaModel", "RobertaConfig", **BERT), words, 2, own_eager,
    bert_projections), Family(
        "electra", hf_model("ElectraModel", "ElectraConfig", embedding_size=20, **BERT),
        words, 2, own_eager, bert_projections,
    ),
    Family(
        "xlm-roberta", hf_model("XLMRobertaModel", "XLMRobertaConfig", **BERT),
        words, 2, own_eager, bert_projections,
    ),
    Family(
        "camembert", hf_model("CamembertModel", "CamembertConfig", **BERT),
        words, 2, own_eager, bert_projections,
    ),
    Family(
        "luke", hf_model("LukeModel", "LukeConfig", entity_vocab_size=9, entity_emb_size=10, **BERT),
        words, 2, own_eager, bert_projections,
    ),
    Family(
        "luke-entities", hf_model("LukeModel", "LukeConfig", entity_vocab_size=9, entity_emb_size=10, **BERT),
        words_and_entities, 2, own_eager, bert_projections,
    ),
    Family(
        "longformer", hf_model("LongformerModel", "LongformerConfig", attention_window=4, **BERT),
        words, 2, own_longformer, longformer_projections,
    ),
    Family(
        "longformer-global", hf_model("LongformerModel", "LongformerConfig", attention_window=4, **BERT),
        global_words, 2, own_longformer, longformer_projections,
    ),
    Family(
        "distilbert",
        hf_model("DistilBertModel", "DistilBertConfig", vocab_size=60, dim=24, n_layers=2, n_heads=3,
                 hidden_dim=34),
        words, 2, own_eager, distilbert_projections,
    ),
    Family(
        "gpt2",
        hf_model("GPT2LMHeadModel", "GPT2Config", vocab_size=60, n_embd=24, n_layer=2, n_head=3,
                 n_positions=40),
        words, 2, own_eager, gpt2_projections,
    ),
    Family(
        "llama",
        hf_model(
            "LlamaForCausalLM", "LlamaConfig", vocab_size=60, hidden_size=24, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=2, intermediate_size=34, max_position_embeddings=40,
        ),
        words, 2, own_eager, llama_projections, rotated=True,
    ),
    Family(
        "albert",
        hf_model(
            "AlbertModel", "AlbertConfig", vocab_size=60, embedding_size=20, hidden_size=24,
            num_hidden_layers=4,
            num_attention_heads=3, intermediate_size=34, max_position_embeddings=40,
        ),
        words, 4, own_eager, bert_projections,
    ),
    Family(
        "gemma2",
        hf_model(
            "Gemma2Model", "Gemma2Config", vocab_size=60, hidden_size=24, num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, intermediate_size=34, attn_logit_softcapping=5.0,
            sliding_window=4, attn_implementation="eager",
        ),
        words, 2, own_eager, llama_projections, rotated=True,
    ),
    Family(
        "hf-vit",
        hf_model(
            "ViTModel", "ViTConfig", hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
            intermediate_size=34, image_size=32, patch_size=8,
        ),
        images, 2, own_eager, vit_projections,
    ),
]  # fmt: skip

FAMILIES = {family.name: family for family in VISION + TEXT}
