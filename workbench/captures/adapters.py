"""Families whose attention the general routes do not see, or see in other axes: one small class each.

``register_adapter`` adds one; docs/capture.md works an example.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from workbench.attention.base import merge_heads, split_heads
from workbench.captures.records import Call, WindowOrigin
from workbench.captures.weights import attention_weights
from workbench.core.errors import InputError
from workbench.core.plugins import OURS, Plugin, load_plugins


@dataclass
class Visit:
    """One pass through a module's forward: what went in, what came out, what the routes saw meanwhile.

    ``parents`` are the visits around it, innermost first; their ``output`` is not there yet.
    """

    module: Any  # attributes of the family are read from it
    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parents: list[Visit] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    output: Any = None
    # Of our own variants: what ``attend`` returned, (output, what lies inside).
    attended: tuple[Tensor, dict[str, Any]] | None = None

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument of the forward, whether it was passed by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


class Adapter:
    """Reads the attention calls of one visit to a module of ``classes`` ("package.module.Class" paths).

    ``read`` gets the calls the routes saw inside (none, where the family writes its attention out) and
    returns those to record. It runs without gradients unless they were asked for, and must not change the
    module.
    """

    classes: ClassVar[tuple[str, ...]] = ()
    # Whether ``read`` looks at the calls that the routes saw inside; it then returns as many.
    reads_calls: ClassVar[bool] = True

    def read(self, visit: Visit) -> list[Call]:
        raise TypeError(f"{type(self).__name__} defines no read(visit)")


_ADAPTERS: dict[str, Adapter] = {}


def register_adapter(adapter: type[Adapter]) -> type[Adapter]:
    """Class decorator: use this adapter for its ``classes`` from now on, in place of an earlier one."""
    if isinstance(adapter.classes, str) or not adapter.classes:
        raise InputError(f"{adapter.__name__}.classes must be a tuple of 'package.module.Class' paths")
    for path in adapter.classes:
        _ADAPTERS[path] = adapter()
    _find_by_class.cache_clear()
    return adapter


def find_adapter(module: nn.Module) -> Adapter | None:
    """The adapter of a module's class or of a class it derives from."""
    load_families()
    return _find_by_class(type(module))


@functools.cache
def load_families() -> None:
    """Let adapters of other packages join; those for a class that has one are refused."""
    owners = {path: _owner(adapter) for path, adapter in _ADAPTERS.items()}

    def accept(plugin: Plugin, value: Any) -> None:
        if not isinstance(value, type) or not issubclass(value, Adapter):
            raise InputError("it is no class derived from workbench.captures.Adapter")
        clash = [path for path in value.classes if path in before and type(before[path]) is not value]
        if clash:
            raise InputError(f"{owners[clash[0]]} has an adapter for {clash[0]}")
        register_adapter(value)
        owners.update(dict.fromkeys(value.classes, plugin.origin))
        before.update({path: _ADAPTERS[path] for path in value.classes})

    before = dict(_ADAPTERS)
    load_plugins("workbench.families", {}, accept)
    # What a refused package registered of its own accord when it was imported goes again.
    _ADAPTERS.clear()
    _ADAPTERS.update(before)
    _find_by_class.cache_clear()


def _owner(adapter: Adapter) -> str:
    package = type(adapter).__module__.partition(".")[0]
    return OURS if package == "workbench" else package


@functools.cache
def _find_by_class(cls: type) -> Adapter | None:
    paths = (f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__)
    return next((_ADAPTERS[path] for path in paths if path in _ADAPTERS), None)


def adapted_classes() -> list[str]:
    """Class paths that have an adapter."""
    return sorted(_ADAPTERS)


@register_adapter
class CrossCovariance(Adapter):
    """XCiT: channels attend to channels. Seen as (batch, head, channel, token), temperature inside q."""

    classes = ("timm.models.xcit.XCA",)

    def read(self, visit: Visit) -> list[Call]:
        temperature = visit.module.get_parameter("temperature")
        return [
            replace(
                call,
                q=(call.q / temperature).mT,
                k=call.k.mT,
                v=call.v.mT,
                head_out=call.head_out.mT,
                scale=temperature.clone(),
                kind="channel",
            )
            for call in visit.calls
        ]


@register_adapter
class Windows(Adapter):
    """Swin: one call for all windows of all images; keeps which window each row of the batch is."""

    classes = ("timm.models.swin_transformer.WindowAttention",)

    def read(self, visit: Visit) -> list[Call]:
        block = next((v for v in visit.parents if hasattr(v.module, "shift_size")), None)
        if block is None:  # the attention on its own: no image to cut
            return visit.calls
        _, height, width, _ = block.args[0].shape
        size, shift = block.module.window_size, block.module.shift_size
        grid = (math.ceil(height / size[0]), math.ceil(width / size[1]))
        per_image = grid[0] * grid[1]
        calls = []
        for call in visit.calls:
            window = torch.arange(call.q.shape[0], device=call.q.device)
            within = window % per_image
            origin = WindowOrigin(
                window // per_image, within // grid[1], within % grid[1], tuple(size), tuple(shift), grid
            )
            calls.append(replace(call, origin=origin))
        return calls


@register_adapter
class TalkingHeads(Adapter):
    """CaiT: linear maps mix the heads before and after the softmax, so rows of attn do not sum to 1."""

    classes = ("timm.models.cait.TalkingHeadAttn",)

    def read(self, visit: Visit) -> list[Call]:
        module = visit.module
        x: Tensor = visit.args[0]
        heads, scale = module.num_heads, module.scale
        q, k, v = (split_heads(part, heads) for part in module.qkv(x).chunk(3, dim=-1))
        scores = self._mix(module.proj_l, (q * scale) @ k.mT)
        attn = self._mix(module.proj_w, scores.softmax(dim=-1))
        output = attn @ v
        return [
            Call(
                q, k, v, scale, None, output, attn=attn, rows_sum_to_one=False,
                dropout=max(module.attn_drop.p, module.proj_drop.p) if module.training else 0.0,
                reproduced=[(module.proj(merge_heads(output)), visit.output)],
            )
        ]  # fmt: skip

    @staticmethod
    def _mix(linear: nn.Module, maps: Tensor) -> Tensor:
        return linear(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@register_adapter
class SlidingWindow(Adapter):
    """Longformer: a band of keys around each query, global tokens seen by all, and their own projections.

    Stored densely: the band and the padding are ``mask``. Rows of global tokens in ``attn`` come from the
    extra sites q_global, k_global, v_global (without a scale of their own, so ``scale`` holds for them as
    well); ``global_tokens`` (batch, token) marks them.
    """

    classes = ("transformers.models.longformer.modeling_longformer.LongformerSelfAttention",)

    def read(self, visit: Visit) -> list[Call]:
        module = visit.module
        x: Tensor = visit.argument(0, "hidden_states")
        padded: Tensor = visit.argument(2, "is_index_masked")
        is_global: Tensor = visit.argument(3, "is_index_global_attn")
        heads = module.num_heads
        q, k, v = (split_heads(layer(x), heads) for layer in (module.query, module.key, module.value))
        place = torch.arange(x.shape[1], device=x.device)
        near = (place[:, None] - place).abs() <= module.one_sided_attn_window_size
        allowed = (near & ~padded[:, None, :]) | is_global[:, None, :]
        allowed &= ~padded[:, :, None]  # queries that are padding attend to nothing
        extra = {}
        if bool(is_global.any()):
            layers = (module.query_global, module.key_global, module.value_global)
            extra = dict(
                zip(
                    ("q_global", "k_global", "v_global"),
                    (split_heads(layer(x), heads) for layer in layers),
                    strict=True,
                )
            )
            extra["global_tokens"] = is_global
            allowed = torch.where(is_global[:, :, None], ~padded[:, None, :], allowed)
        output = split_heads(visit.output[0], heads)
        call = Call(
            q, k, v, 1 / math.sqrt(module.head_dim), allowed[:, None], output, extra=extra,
            dropout=module.dropout if module.training else 0.0,
        )  # fmt: skip
        if extra:
            call = replace(call, attn=self._attn(call), recompute=self._output)
        return [call]

    @staticmethod
    def _attn(call: Call) -> Tensor:
        local = attention_weights(call.q, call.k, call.scale, call.mask)
        far = attention_weights(call.extra["q_global"], call.extra["k_global"], call.scale, call.mask)
        return torch.where(call.extra["global_tokens"][:, None, :, None], far, local)

    @staticmethod
    def _output(call: Call, attn: Tensor) -> Tensor:
        rows = call.extra["global_tokens"][:, None, :, None]
        return torch.where(rows, attn @ call.extra["v_global"].to(attn.dtype), attn @ call.v.to(attn.dtype))


@register_adapter
class WordsAndEntities(Adapter):
    """LUKE: plain attention over words; with entities, four kinds of queries for word and entity pairs.

    With entities the tokens are words, then entities; q holds word-to-word and entity-to-entity queries, the
    extra sites q_word_to_entity and q_entity_to_word the others, and attn the softmax over both kinds of
    keys.
    """

    classes = ("transformers.models.luke.modeling_luke.LukeSelfAttention",)

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
