"""Configurations of transformers made small: the same architecture, few layers, narrow, with a small vocabulary.

Nothing here knows a model. Fields are known by their names, a tree of configurations is walked as a whole, and several
ways of shrinking are tried in turn until one gives a model that runs: what suits nearly all models is that every width
is the same; others want their widths in proportion, or more layers.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

VOCABULARY, CODEBOOK, IMAGE, POSITIONS = 160, 64, 64, 128
WIDTH, HEADS, KEY_HEADS, HEAD_WIDTH, ROTARY_WIDTH = 64, 4, 2, 16, 8

# Names of fields, in the order in which they are asked: the first that fits says what a field is.
_NAMES = {
    "vocabulary": r"vocab_sizes?$|^n_token$|vocab_size_per_layer_input|num_words|entity_vocab",
    "codebook": r"codebook_size$|num_codevectors",
    "chosen": r"(per_tok|per_token|top_?k|topk_experts|topk|moe_k)$",
    "queries": r"^num_queries$|two_stage_num_proposals",
    "token": r"(_token_id|_token_ids|_token_index|(?<!layer)(?<!layers)_id|_token|(?<!layer)_index|_token_offset)$",
    "layers": r"^((num_)?(\w+_)?(hidden_|encoder_|decoder_)?(layers|blocks)|num_(hidden_)?layers(_\w+)?|n_layers?"
    r"|depths?|\w+_depths?|block_repeat\w*)$",
    "image": r"(^|_)(image_size|img_size|input_size|image_resolution|eval_size|train_size|pretrain_img_size)$",
    "frames": r"^num_frames$|^n_frames$|^num_frames_per|^max_frames",
    "positions": r"max_(\w+_)?position|n_positions|max_seq|max_length|n_ctx|max_target|max_source|seq_length$|max_len"
    r"|context_length$",
    "groups": r"^(n_group|topk_group|num_expert_group|num_limited_groups|n_groups_limit)$",
    "experts": r"(num|n)_(\w+_)?experts$|num_experts_total",
    "window": r"^(sliding_window|window_size|attention_window|local_window|attention_window_size|window)$",
    "rotary": r"^(qk_rope_head_dim|qk_nope_head_dim|rotary_dim)$",
    "head width": r"^(\w+_)?(head_dim|head_size|d_kv|dim_head|attention_head_size|attention_head_dim|kv_channels|d_head"
    r"|head_width|head_hidden_size)$",
    "key heads": r"(key_value|kv|key_val)_?(\w+_)?heads|num_key_heads|num_kv|n_kv|multi_query_group",
    "heads": r"(^|_)(n|num)_?(\w+_)?heads?$|_heads$|^heads$|nhead$",
    "other": r"num_channels|in_chans|audio_channels|num_mel|in_channels$|patch_dim|time_step|prob|kernel|stride"
    r"|state_dim|act_dim|input_dim$|conv_L|spatial|codebook_dim|pos_dim|label|coord_dim|temporal|frames|logits_dim"
    r"|input_channels|latent_channels",
    "width": r"hidden_size|hidden_dim|hidden_sizes|hidden_channels|d_model|embed_dim|n_embd|emb_dim|embedding_size"
    r"|embedding_dim|projection_dim|proj_dim|proj_size|(^|_)width$|intermediate|ffn_dim|d_ff$|ff_dim|mlp_dim|n_inner"
    r"|output_dim|_dims?$|^dims?$|hidden$|lora_rank|_channels$|conv_dim|units$|ffn_size|filters|^embed_size|feedforward"
    r"|d_embed|d_inner|d_proj|ffn_hidden|projector_size|upsample_groups",
}  # fmt: skip
_NAMES = {what: re.compile(pattern) for what, pattern in _NAMES.items()}
_NO_LAYERS = re.compile(
    r"feature_layer|feat_extract|max_depth|adapter_layers|kv_shared|num_encoder_blocks|num_stages|_ids$|dense"
)
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")
_PERIODS = re.compile(r"period|interval|every|frequency|_pattern$|_offset$|_freq$|layer_group_size")
_INDICES = re.compile(r"index|indices|layer_ids|_layers$|_layers_?ids")
_UNTOUCHED = {
    "id2label", "label2id", "architectures", "dtype", "transformers_version", "problem_type",
    "chunk_size_feed_forward", "stage_names", "_out_features", "_out_indices", "out_features", "out_indices",
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A way of shrinking: how many layers at most, and what becomes of widths.

    ``widths`` is "same" (all alike), "proportion" (all divided by one number) or "own" (as they are). Without
    layers the configuration is small already.
    """

    layers: int
    widths: str

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.widths} widths" if self.layers else "a small configuration"


WAYS = (
    Way(2, "same"), Way(2, "proportion"), Way(4, "same"), Way(4, "proportion"), Way(6, "same"), Way(2, "own"),
)  # fmt: skip
AS_GIVEN = Way(0, "same")


def shrink(config: Any, way: Way) -> Any:
    """The configuration, smaller, with all that it holds; it is changed in place."""
    whole = list(configs_in(config))
    for each in whole:
        _say_sections(each)
    divisor = _divisor(whole) if way.widths == "proportion" else 1
    tokens: dict[int, int] = {}
    for each in whole:
        _Shrinking(each, way, divisor, tokens).run()
    return config


def configs_in(config: Any) -> Iterator[Any]:
    """A configuration and those inside it, outermost first."""
    yield config
    for _, value in _items(config):
        if _is_config(value):
            yield from configs_in(value)


def _is_config(value: Any) -> bool:
    from transformers import PreTrainedConfig

    return isinstance(value, PreTrainedConfig)


def _items(config: Any) -> list[tuple[str, Any]]:
    """The fields of a configuration under their own names, and what it has besides."""
    names = [field.name for field in fields(config)]
    names += [name for name in vars(config) if name not in names and not name.startswith("_")]
    known = [name for name in names if name not in _UNTOUCHED and name not in config.attribute_map]
    found = []
    for name in known:
        try:
            found.append((name, getattr(config, name)))
        except (AttributeError, RuntimeError):  # layers differ in it, and say it themselves
            continue
    return found


def what_is(name: str) -> str:
    """What a field of this name is, "" where it is nothing that shrinks."""
    found = next((what for what, pattern in _NAMES.items() if pattern.search(name)), "")
    return "" if found == "layers" and _NO_LAYERS.search(name) else found


def numbers(value: Any) -> list[int]:
    """The whole numbers in a value, however deep."""
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [value]
    return [n for item in value for n in numbers(item)] if isinstance(value, (list, tuple)) else []


def _each(value: Any, change: Callable[[int], Any]) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
        return value
    return change(value) if isinstance(value, int) else type(value)(_each(item, change) for item in value)


def _divisor(whole: list[Any]) -> int:
    """The largest power of two that divides all widths, and leaves heads at least 8 wide."""
    widths, heads = [], []
    for config in whole:
        for name, value in _items(config):
            if what_is(name) == "head width":
                heads += [n for n in numbers(value) if n > 0]
            elif what_is(name) == "width":
                widths += [n for n in numbers(value) if n >= 64]
        said = dict(_items(config))
        count, width = (
            said.get(config.attribute_map.get(name, name)) for name in ("num_attention_heads", "hidden_size")
        )
        if isinstance(count, int) and isinstance(width, int) and count and width % count == 0:
            heads.append(width // count)
    common = math.gcd(*widths, *heads)
    power = common & -common
    while power > 1 and heads and min(heads) // power < 8:
        power //= 2
    return max(1, power)


def _say_sections(config: Any) -> None:
    """Put the sections of a rotary embedding into the configuration, where only the model's code has them."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or "mrope_section" in rope or "rope_type" not in rope:
        return
    try:
        module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
        found = re.search(r"mrope_section\", (\[[\d, ]+\])", inspect.getsource(module))
    except (ImportError, OSError):
        return
    if found:
        config.rope_parameters = rope | {"mrope_section": [int(n) for n in found[1][1:-1].split(",")]}


class _Shrinking:
    """One configuration, without those inside it."""

    def __init__(self, config: Any, way: Way, divisor: int, tokens: dict[int, int]) -> None:
        self.config, self.way, self.divisor, self.tokens = config, way, divisor, tokens
        self.items = _items(config)
        said = dict(self.items)
        by_name = (said.get(config.attribute_map.get(name, name)) for name in _DEPTHS)
        self.depth = next((value for value in by_name if type(value) is int), 0)
        heads = said.get(config.attribute_map.get("num_attention_heads", "num_attention_heads"))
        self.heads = heads if isinstance(heads, int) else 0
        sizes = getattr(config, "depths", None) or getattr(config, "hidden_sizes", None)
        self.stages = len(sizes) if isinstance(sizes, (list, tuple)) else 0
        spec = vars(config).get("_heterogeneity_spec")
        self.own: dict[int, dict[str, Any]] = spec.per_layer_overrides if spec is not None else {}
        names = getattr(config, "stage_names", None) or []
        # Of a backbone that gives out what its layers make: how many of them.
        self.rotary = getattr(config, "qk_rope_head_dim", None)
        self.given_out = len(config._out_indices or []) if names and len(names) == self.depth + 1 else 0
        self.layers = self.kept_layers()

    def run(self) -> None:
        for name, value in self.items:
            if name == "head_dim" and value is None and self.way.widths == "same":
                new: Any = HEAD_WIDTH
            elif isinstance(value, dict):
                new = self.of_names(value)
            elif isinstance(value, (list, tuple)) and self.is_per_layer(value):
                new = self.number(name, type(value)(value[i] for i in self.layers))
            elif numbers(value):
                new = self.number(name, value)
            else:
                continue
            if new != value:
                try:
                    setattr(self.config, name, new)
                except (
                    AttributeError,
                    TypeError,
                    ValueError,
                ):  # checked against a type that the class does not keep
                    object.__setattr__(self.config, name, new)

        if self.own:
            kept = [self.own.get(i, {}) for i in self.layers]
            self.config._heterogeneity_spec.per_layer_overrides = {
                i: {
                    name: self.number(name, value) if numbers(value) else value for name, value in own.items()
                }
                for i, own in enumerate(kept)
            }
        if self.given_out:
            last = len(self.layers)
            self.config.stage_names = ["stem", *(f"stage{i}" for i in range(1, last + 1))]
            self.config._out_indices = list(range(last - self.given_out + 1, last + 1))
            self.config._out_features = [self.config.stage_names[i] for i in self.config._out_indices]

    def is_per_layer(self, value: Any) -> bool:
        return len(value) == self.depth > len(self.layers) and self.depth != self.stages

    def kept_layers(self) -> list[int]:
        """Which layers to keep: at least one of every kind that the configuration tells apart."""
        least, kept = max(self.way.layers, self.given_out), []
        kinds = [("", [self.own.get(i) for i in range(self.depth)])] if self.own else []
        for name, value in [*self.items, *kinds]:
            if type(value) is int and _PERIODS.search(name) and 1 < value <= 8:
                least = max(least, value + ("offset" in name))
            per_layer = isinstance(value, (list, tuple)) and len(value) == self.depth != self.stages
            if per_layer and what_is(name) != "width":
                seen = {str(value[i]) for i in kept}
                for i, kind in enumerate(map(str, value)):
                    if kind not in seen and len(seen) < 8:
                        kept.append(i)
                        seen.add(kind)
        kept += [i for i in range(self.depth) if i not in kept][: max(0, least - len(kept))]
        return sorted(set(kept))

    def number(self, name: str, value: Any) -> Any:
        """Numbers under a name, smaller."""
        what = what_is(name)
        if self.depth and isinstance(value, (list, tuple)) and _INDICES.search(name) and what != "token":
            return self.places(value)
        match what:
            case "vocabulary":
                return _each(value, lambda v: min(v, VOCABULARY))
            case "codebook":
                return _each(value, lambda v: min(v, CODEBOOK))
            case "token":
                return _each(value, self.token)
            case "layers":
                kept = len(self.layers)
                return _each(value, lambda v: kept if v == self.depth else min(v, self.way.layers))
            case "image" if isinstance(value, (list, tuple)) and len(value) > 2:
                return value
            case "image":
                return _each(value, self.image)
            case "frames":
                return _each(value, lambda v: min(v, 4))
            case "positions":
                return _each(value, lambda v: min(v, POSITIONS) if v < 10**6 else v)
            case "groups":
                return _each(value, lambda v: min(v, 1))
            case "experts":
                return _each(value, lambda v: min(v, 4))
            case "queries":
                return _each(value, lambda v: min(v, 10))
            case "chosen":
                return _each(value, lambda v: min(v, 2))
            case "window":
                # windows over pixels stay
                return min(value, 8) if isinstance(value, int) and value > 16 and value % 14 else value
            case "rotary" | "head width" | "width" if self.way.widths == "proportion":
                return _each(value, lambda v: v if v % self.divisor else v // self.divisor)
        return self.alike(what, value) if self.way.widths == "same" else value

    def alike(self, what: str, value: Any) -> Any:
        """Widths and heads, of which all are the same, or in lists in proportion."""
        match what:
            case "rotary":
                return _each(value, lambda v: min(v, ROTARY_WIDTH))
            case "head width" if value == self.rotary:
                return _each(value, lambda v: min(v, ROTARY_WIDTH))
            case "head width":
                return _each(value, lambda v: min(v, HEAD_WIDTH))
            case "key heads":
                fewer = KEY_HEADS if numbers(value)[0] < self.heads else HEADS
                return _each(value, lambda v: min(v, fewer))
            case "heads" if isinstance(value, int):
                return min(value, HEADS) if value != 3 else HEADS
            case "heads":
                common = math.gcd(*numbers(value)) or 1
                return _each(value, lambda v: v // common)
            case "width" if isinstance(value, int):
                return min(value, WIDTH)
            case "width":
                common = math.gcd(*numbers(value))
                return _each(value, lambda v: v * 16 // common) if common >= 16 else value
        return value

    def token(self, value: int) -> int:
        """The number of a special token, inside the vocabulary and of no word."""
        return self.tokens.setdefault(value, VOCABULARY - 1 - len(self.tokens)) if value >= 100 else value

    def places(self, value: Any) -> Any:
        """Numbers of layers, in a model of fewer; where all would be named, the last alone."""
        fewer = len(self.layers)
        if numbers(value) != list(value) or not value or not fewer <= max(value) <= self.depth:
            return value
        new = sorted({min(v * fewer // self.depth, fewer - (v < self.depth)) for v in value if v >= 0})
        return type(value)(new[-1:] if len(new) == fewer else new)

    def image(self, value: int) -> int:
        """The side of an image: four patches, or what four halvings suit."""
        patch = (numbers(getattr(self.config, "patch_size", None)) or [0])[-1]
        return value if value < IMAGE else 4 * patch if patch >= 10 else IMAGE

    def of_names(self, value: dict[str, Any]) -> dict[str, Any]:
        """Image sizes by name, and the sections of a rotary embedding."""
        new = dict(value)
        for key, item in value.items():
            if isinstance(item, dict):
                new[key] = self.of_names(item)
            elif key in ("height", "width") and type(item) is int:
                new[key] = min(item, IMAGE)
            elif key == "mrope_section" and item and self.way.widths != "own":
                part = value.get("partial_rotary_factor", 1.0)
                total = (
                    int(HEAD_WIDTH * part) // 2 if self.way.widths == "same" else sum(item) // self.divisor
                )
                part = total // len(item)
                new[key] = [total - part * (len(item) - 1)] + [part] * (len(item) - 1)
        return new
