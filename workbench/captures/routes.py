"""The general ways that attention is seen while a model runs, each a context manager that undoes itself.

Modules announce themselves through hooks; attention is seen where it is computed:

- ``F.scaled_dot_product_attention`` through a ``TorchFunctionMode`` (timm with ``fused_attn`` on, any user's module);
- ``nn.MultiheadAttention`` and ``nn.TransformerEncoder``, inside whose handler that mode is off, through the name
  ``torch.nn.functional.scaled_dot_product_attention``, with the inference fast path off;
- transformers through the one function every model of it asks for its attention,
  ``AttentionInterface.get_interface``: the function it would have called is called with the same arguments, so nothing
  is switched and nothing recomputed; masks that a kernel applies by itself are written out (``implicit_masks``);
- ``flex_attention`` and the functions of FlashAttention, called directly, through their names (``attention_kernels``);
- attention written out in plain operations through the same mode, by following the data (``written_out``);
- the variants of ``workbench.attention``, which say themselves what lies inside while they attend.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily
from torch.utils import checkpoint

from workbench.attention.base import AttentionModule
from workbench.captures.attention_kernels import PACKAGES, watch_kernels
from workbench.captures.implicit_masks import (
    allowed,
    block_mask,
    causal_mask,
    in_a_row,
    in_packed_rows,
    in_padded_rows,
    starts_of,
)
from workbench.captures.layer_records import Call, CausalCall
from workbench.captures.layout import declared_heads, is_attention
from workbench.captures.recomputation import (
    additive,
    four_axes,
    scores_of,
    softmax_of,
    weights_and_output,
)
from workbench.captures.thread_guard import in_this_thread, replaced
from workbench.captures.written_out import Follower, WrittenOut, heads_in_batch, refuse_vmap
from workbench.core.errors import IncompleteCapture

_SDPA = F.scaled_dot_product_attention
_MHA = F.multi_head_attention_forward
_LAYERS = ("torch.nn.modules.", "transformers.pytorch_utils", "transformers.activations")
"""Files of layers that neither attend nor contain attention, except torch's own."""


class Visitor(Protocol):
    """An observer of passes through modules."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def leave(self, module: nn.Module, output: Any) -> None: ...


class VariantObserver(Protocol):
    """An observer of the workbench's variants."""

    def observes(self, module: nn.Module) -> bool:
        """Whether to hand over what lies inside this variant, which is about to attend."""
        ...

    def observed(self, module: nn.Module, output: Tensor, inside: dict[str, Any]) -> None: ...

    @property
    def writes(self) -> bool:
        """Whether it writes into ``output``."""
        ...


class Observer(Protocol):
    """An observer of calls of attention."""

    def wants(self, module: nn.Module | None) -> bool:
        """Attention was seen, in this module or the innermost one; whether to hand the call over."""
        ...

    @property
    def writes(self) -> bool:
        """Whether it writes into the outputs of calls, which are then copies."""
        ...

    def shares_map(self, shape: tuple[int, ...], dtype: torch.dtype, formed: bool) -> bool:
        """Whether output and record of the call share one map (batch, head, query, key).

        ``formed`` tells whether the model forms the map itself.
        """
        ...

    def seen(self, call: Call, module: nn.Module | None) -> None: ...
    def skip(self, module: nn.Module | None) -> None: ...


@contextmanager
def watch_modules(
    modules: Sequence[nn.Module], visitor: Visitor, elsewhere: Callable[[], None]
) -> Generator[None]:
    """Report every pass through one of ``modules``, root first, except linear layers, activations and the like.

    ``elsewhere`` is called for passes in other threads, which are not reported.
    """

    def enter(child: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        visitor.enter(child, args, kwargs)

    def leave(child: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        visitor.leave(child, output)

    entered = in_this_thread(enter, lambda *_: elsewhere())
    with ExitStack() as hooks:
        for child in modules:
            hookable = not isinstance(child, torch.jit.ScriptModule)
            if hookable and (child is modules[0] or not _is_plain_layer(child)):
                hooks.enter_context(child.register_forward_pre_hook(entered, with_kwargs=True))
                # always_call: a model that catches an exception of a submodule must not confuse the record.
                hooks.enter_context(child.register_forward_hook(in_this_thread(leave), always_call=True))
        yield


def _is_plain_layer(module: nn.Module) -> bool:
    cls = type(module)
    attends = cls.__name__.startswith(("MultiheadAttention", "Transformer"))
    return cls.__module__.startswith(_LAYERS) and not attends


def fused_kernels(modules: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Let modules that choose between a fused kernel and written-out attention (timm) use the kernel."""
    return _set(without_kernel(modules), "fused_attn", True)


def without_kernel(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the attention modules that are set to leave out their fused kernel (timm)."""
    return [child for child in modules if vars(child).get("fused_attn") is False and is_attention(child)]


def no_cache(modules: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Keep transformers models from filling a cache of keys and values that nobody reads."""
    configs = [vars(child).get("config") for child in modules]
    return _set(
        [config for config in configs if getattr(config, "use_cache", None) is True], "use_cache", False
    )


@contextmanager
def _set(owners: Sequence[Any], name: str, value: bool) -> Generator[None]:
    """Set a switch of ``owners``, which all have the opposite value, until the block ends."""
    try:
        for owner in owners:
            setattr(owner, name, value)
        yield
    finally:
        for owner in owners:
            setattr(owner, name, not value)


@contextmanager
def _slow_multihead_attention() -> Generator[None]:
    """Turn off the inference fast path of ``nn.TransformerEncoder``, which leaves Python altogether."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def without_checkpoints(note: Callable[[], None]) -> Generator[None]:
    """Run checkpointed functions without activation checkpointing, and call ``note`` for each.

    Their recomputation in the backward pass lacks the operations of the capture, and the operands have no gradients.
    """

    def reentrant(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        note()
        return function(*args)

    def around(*_: Any, **__: Any) -> Generator[None]:
        note()
        yield

    names = [name for name in vars(checkpoint) if name.startswith("_checkpoint_without_reentrant_generator")]
    with ExitStack() as stack:
        stack.enter_context(replaced(checkpoint.CheckpointFunction, "apply", reentrant))
        for name in names:  # whose name depends on torch's version
            stack.enter_context(replaced(checkpoint, name, around))
        yield


@contextmanager
def noting_fast_path(modules: Sequence[nn.Module], note: Callable[[], None]) -> Generator[None]:
    """Call ``note`` where torch's fast path would have been taken, had it not been off, as ``forward`` decides.

    Hooks keep an encoder layer from its fast path, so this is entered before any hook of a capture is there.
    """

    def layer(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = {**dict(zip(("src",), args, strict=False)), **kwargs}
        if arguments["src"].ndim == 3:
            note()

    def attention(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        masks = [arguments.get("key_padding_mask"), arguments.get("attn_mask")]
        query = arguments["query"]
        itself = query is arguments["key"] is arguments["value"]
        if itself and query.ndim == 3 and not any(m is not None and m.is_floating_point() for m in masks):
            note()

    enabled = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as hooks:
        for child in [child for child in modules if enabled and _has_fast_path(child)]:
            hook = layer if isinstance(child, nn.TransformerEncoderLayer) else attention
            hooks.enter_context(child.register_forward_pre_hook(in_this_thread(hook), with_kwargs=True))
        yield


def _has_fast_path(module: nn.Module) -> bool:
    """Whether the module, as it is set, takes torch's fast path with inputs that allow it."""
    kinds = nn.TransformerEncoderLayer, nn.MultiheadAttention
    if not isinstance(module, kinds):
        return False
    if type(module).forward not in [kind.forward for kind in kinds]:  # a subclass decides for itself
        return False
    if module.training or torch.is_autocast_enabled():
        return False
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()):
        return False
    if isinstance(module, nn.TransformerEncoderLayer):
        hooked = any(child._forward_hooks or child._forward_pre_hooks for child in module.modules())
        norms = {getattr(norm, "eps", norm) for norm in (module.norm1, module.norm2)}
        supported = bool(module.activation_relu_or_gelu) and len(norms) == 1
        return supported and not hooked and _projects_at_once(module.self_attn)
    return _projects_at_once(module) and module.bias_k is None and not module.add_zero_attn


def _projects_at_once(attention: nn.Module) -> bool:
    """Whether the fast path can read the projections: of one width, with biases, batch first, for even heads."""
    if not isinstance(attention, nn.MultiheadAttention) or attention.in_proj_bias is None:
        return False
    return attention._qkv_same_embed_dim and attention.batch_first and attention.num_heads % 2 == 0


@contextmanager
def zero_padding(modules: Sequence[nn.Module]) -> Generator[None]:
    """Zeros where ``nn.TransformerEncoder`` has them in rows of padding, which its fast path leaves out."""

    def enter(encoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = {**dict(zip(("src", "mask", "src_key_padding_mask"), args, strict=False)), **kwargs}
        src, padded = arguments["src"], arguments.get("src_key_padding_mask")
        rows[encoder] = padded if _packs(encoder, src, arguments.get("mask"), padded) else None

    def leave(encoder: nn.Module) -> Callable[..., Any]:
        def blank(_: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            padded = rows.get(encoder)
            return None if padded is None else output.masked_fill(padded.bool().unsqueeze(-1), 0.0)

        return blank

    rows: dict[nn.Module, Tensor | None] = {}
    enabled = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as hooks:
        for child in modules if enabled else ():
            if isinstance(child, nn.TransformerEncoder) and child.layers:
                hooks.enter_context(child.register_forward_pre_hook(in_this_thread(enter), with_kwargs=True))
                hooks.enter_context(child.layers[-1].register_forward_hook(in_this_thread(leave(child))))
        yield


def _packs(encoder: Any, src: Tensor, mask: Tensor | None, padded: Tensor | None) -> bool:
    """Whether the encoder would pack its input, without the padding, as its ``forward`` decides."""
    if padded is None or mask is not None or encoder.training or encoder.layers[0].training or src.ndim != 3:
        return False
    if not getattr(encoder, "use_nested_tensor", False) or torch.is_autocast_enabled():
        return False
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in encoder.parameters()):
        return False
    real = padded.logical_not() if padded.dtype == torch.bool else padded == 0
    return not encoder.mask_check or bool(torch._nested_tensor_from_mask_left_aligned(src, real))


class _Watch(TorchFunctionMode):
    def __init__(
        self,
        observer: Observer,
        interface: _Interface,
        written_out: WrittenOut | None = None,
        stance: Any = None,
    ) -> None:
        super().__init__()
        self.stance = stance
        self.observer = observer
        self.interface = interface
        self.written_out = written_out

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is _SDPA:
            return self.attend(*args, **kwargs)
        if func is _MHA:
            return self.multihead(args, kwargs)
        if self.written_out is None or self.interface.running or self.written_out.observer.busy:
            return func(*args, **kwargs)
        return self.written_out.follow(func, args, kwargs)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """``F.scaled_dot_product_attention``, seen."""
        refuse_vmap(query)

        def kernel(inputs: slice) -> Tensor:
            mask = _of_inputs(attn_mask, inputs, query)
            return _SDPA(
                query[inputs], key[inputs], value[inputs], mask, dropout_p, is_causal, scale=scale, **kwargs
            )

        used_scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        running = self.interface.running
        wanted = self.interface.wanted if running else self.observer.wants(None)
        product = None
        if wanted and not dropout_p and query.ndim == key.ndim == value.ndim == 4:
            sizes = (*query.shape[:3], key.shape[2])
            if len(query) == len(key) == len(value) and self.observer.shares_map(sizes, query.dtype, False):
                mask = causal_mask(*sizes[2:], query.device) if is_causal else attn_mask
                product = _Product.of(query, key, value, used_scale, mask, kernel)
        output = kernel(slice(None)) if product is None else product.output
        if running:
            self.interface.inner = _Inner(attn_mask, is_causal, used_scale, query.shape[2], product)
            return output
        if not wanted:
            self.observer.skip(None)
            return output
        output = output.clone() if self.observer.writes else output
        lead = output.shape[:-2]
        call = (CausalCall if is_causal else Call)(
            q=four_axes(query, lead),
            k=four_axes(key, (*lead[:-1], key.shape[-3]) if key.ndim > 3 else lead),
            v=four_axes(value, (*lead[:-1], value.shape[-3]) if value.ndim > 3 else lead),
            scale=used_scale,
            mask=None if attn_mask is None else _four_axes_mask(attn_mask, lead),
            head_out=four_axes(output, lead),
            dropout=dropout_p,
        )
        if product is not None:
            product.tell(call)
        self._unfold_heads(call, (query, key, value), lead)
        self.observer.seen(call, None)
        return output

    def _unfold_heads(self, call: Call, operands: tuple[Tensor, ...], lead: tuple[int, ...]) -> None:
        """Separate inputs and heads that a module folded into one axis, alone or before an axis of size 1."""
        if self.written_out is None or not lead or lead[1:] not in ((), (1,)):
            return
        location, merged = self.written_out.observer.module_and_input(), self.written_out.merged
        if location is None or not isinstance(location[1], Tensor):
            return
        module, module_input = location
        expected = len(module_input) * (declared_heads(module) or 0)
        if len(lead) == 2 and lead[0] != expected and not any(id(x) in merged for x in operands):
            return
        folded = heads_in_batch(lead[0], operands, (), module, module_input, merged)
        if folded is None:
            return
        sizes, heads_first = folded
        for site in ("q", "k", "v", "mask", "used_attn", "head_out"):
            value = None if site == "mask" and call.causal else getattr(call, site)
            if value is not None and len(value) == lead[0]:
                value = value.squeeze(1).unflatten(0, sizes)
                setattr(call, site, value.transpose(0, 1) if heads_first else value)

    def multihead(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``F.multi_head_attention_forward``, in whose body this mode is off."""
        watch_functional = replaced(F, "scaled_dot_product_attention", self.attend)
        position = list(_MHA.__code__.co_varnames).index("need_weights")
        need_weights = args[position] if len(args) > position else kwargs.get("need_weights", True)
        if not need_weights:
            with watch_functional:
                return _MHA(*args, **kwargs)
        # With weights asked for, the body multiplies matrices instead of calling the kernel. The caller gets what that
        # computes; the operands are those of a second pass through the kernel, compared with the first.
        result = _MHA(*args, **kwargs)
        if not self.observer.wants(None):
            self.observer.skip(None)
            return result
        again = dict(zip(_MHA.__code__.co_varnames, args, strict=False)) | kwargs
        if self.observer.writes:  # the weights are those of before the change
            by_kernel: dict[str, Any] = {**again, "need_weights": False, "is_causal": False}
            with watch_functional:
                return _MHA(**by_kernel)[0], result[1]
        again |= {"need_weights": False, "is_causal": False, "training": False}
        collector = _Collector()
        with replaced(F, "scaled_dot_product_attention", _Watch(collector, self.interface).attend):
            output, _ = _MHA(**again)
        for call in collector.calls:
            if again.get("dropout_p") and kwargs.get("training", True):
                call.dropout = float(again["dropout_p"])
            call.reproduced = [(output, result[0])]
            self.observer.seen(call, None)
        return result


@dataclass(frozen=True)
class _Product:
    """Attention that was multiplied out in place of its kernel, which ran for the first input only."""

    weights: Tensor
    output: Tensor
    of_kernel: Tensor

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        mask: Tensor | None,
        kernel: Callable[[slice], Tensor],
    ) -> _Product:
        return cls(*weights_and_output(q, k, v, scale, mask), kernel(slice(0, 1)))

    def tell(self, call: Call) -> None:
        call.used_attn = self.weights
        call.reproduced = [(self.output[:1], self.of_kernel)]


class _Inner(NamedTuple):
    """The arguments of the kernel inside one of transformers' attention functions."""

    mask: Tensor | None
    is_causal: bool
    scale: float
    queries: int
    product: _Product | None


class _Collector:
    """An observer that keeps calls in a list."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def wants(self, module: nn.Module | None) -> bool:
        return True

    def seen(self, call: Call, module: nn.Module | None) -> None:
        self.calls.append(call)

    def shares_map(self, shape: tuple[int, ...], dtype: torch.dtype, formed: bool) -> bool:
        return False

    def skip(self, module: nn.Module | None) -> None:
        raise AssertionError("it wants every call")

    writes = False


class _Interface:
    """transformers' attention functions, seen from outside; ``inner`` has the arguments of the kernel inside."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.running = False
        self.wanted = False
        self.inner: _Inner | None = None

    def wrap(self, name: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
        def attention(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Any = None,
            *args: Any,
            **kwargs: Any,
        ) -> tuple[Tensor, Tensor | None]:
            self.running, self.inner = True, None
            self.wanted = self.observer.wants(module)
            try:
                # flex_attention compiles its body, of which a mode in force would be a part
                with unwatched() if name == "flex_attention" else nullcontext():
                    result = function(module, query, key, value, attention_mask, *args, **kwargs)
                call = None
                if self.wanted:
                    result = (result[0].clone(), *result[1:]) if self.observer.writes else result
                    call = self._call(
                        name or "eager", module, query, key, value, attention_mask, kwargs, result
                    )
            finally:
                self.running = False
            if call is None:
                self.observer.skip(module)
            else:
                self.observer.seen(call, module)
            return result

        return attention

    def _call(
        self,
        name: str,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        kwargs: dict[str, Any],
        result: tuple[Tensor, Tensor | None],
    ) -> Call:
        output, weights = (
            result[0].unflatten(-1, (query.shape[1], -1)) if result[0].ndim == 3 else result[0],
            result[1],
        )
        scale = kwargs.get("scaling")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        is_causal, product = False, None
        if self.inner is not None:
            mask, is_causal, scale, queries, product = self.inner
            if mask is not None and queries != query.shape[2]:
                mask = mask.flatten(1, 2).unsqueeze(2)  # heads of a group were packed into the query axis
        elif "flash" in name:
            mask = _flash_mask(module, query, key, attention_mask, kwargs)
        else:
            mask = _combined_mask(name, module, query, key, attention_mask, kwargs.get("position_bias"))
        # Soft caps and attention sinks change the softmax itself: there the family's own weights are the truth, where
        # its attention gives them, which kernels do not.
        sinks = kwargs.get("s_aux", kwargs.get("sinks"))
        softcap = kwargs.get("softcap")
        if weights is not None and weights.shape[-2:] != (query.shape[2], key.shape[2]):
            weights = None  # what flex_attention returns beside its output
        dropout = float(kwargs.get("dropout") or 0.0)
        formed = None  # softmax(scale q kᵀ + mask) as the function formed it
        if self.inner is not None or (softcap is None and sinks is None):
            if weights is not None and not dropout:
                formed = weights
            weights = None
        elif weights is None:
            scores = scores_of(query, key, scale)
            weights = softmax_of(
                scores if softcap is None else softcap * (scores / softcap).tanh(), mask, sinks
            )
        elif sinks is not None and bool(((weights.sum(dim=-1) - 1).abs() < 1e-3).all()):
            # put into the output alone (Granite)
            weights = softmax_of(scores_of(query, key, scale), mask, sinks)
        call = (CausalCall if is_causal else Call)(
            q=query,
            k=key,
            v=value,
            scale=scale,
            mask=mask,
            head_out=output.transpose(1, 2),
            attn=weights,
            rows_sum_to_one=sinks is None,
            dropout=dropout,
        )
        if product is not None and product.weights.shape[1:3] == query.shape[1:3]:
            product.tell(call)
        elif formed is not None and self.observer.shares_map(formed.shape, formed.dtype, True):
            call.used_attn = formed
        return call


def _flash_mask(
    module: Any, query: Tensor, key: Tensor, padding: Tensor | None, arguments: Mapping[str, Any]
) -> Tensor | None:
    """The mask that FlashAttention applies by itself, read from the module and the call as transformers reads them."""
    if arguments.get("block_table") is not None or arguments.get("cache") is not None:
        raise IncompleteCapture(
            f"{type(module).__name__} runs paged attention, whose keys lie in a shared cache; capture the model "
            "outside continuous batching"
        )
    causal = arguments.get("is_causal")
    causal = module.is_causal if causal is None else causal
    queries, keys = query.shape[2], key.shape[2]
    starts, starts_k = arguments.get("cu_seq_lens_q"), arguments.get("cu_seq_lens_k")
    position_ids = arguments.get("position_ids")
    if padding is not None:
        at = in_padded_rows(padding, queries, keys)
    elif starts is not None and starts_k is not None:
        at = in_packed_rows(starts, starts_k, queries, keys)
    elif (
        position_ids is not None
        and len(query) == 1
        and position_ids.shape[-1] == queries == keys > 1
        and bool((position_ids.reshape(-1).diff() != 1).any())
    ):
        starts = starts_of(position_ids)
        at = in_packed_rows(starts, starts, queries, keys)
    else:
        at = in_a_row(queries, keys, query.device)
    window = arguments.get("sliding_window")
    return allowed(*at, causal, (-1, -1) if window is None else (window - 1, window - 1))


def _combined_mask(
    name: str, module: nn.Module, query: Tensor, key: Tensor, mask: Any, bias: Tensor | None
) -> Tensor | None:
    """Return the mask of an attention call, a tensor or functions of flex_attention, joined with a bias."""
    if mask is not None and not isinstance(mask, Tensor):
        if not hasattr(mask, "mask_mod"):
            raise IncompleteCapture(
                f"{type(module).__name__} runs attention {name!r} with a {type(mask).__name__} as mask, "
                "which cannot be read; load the model with attn_implementation='sdpa' or 'eager'"
            )
        mask = block_mask(mask, query.shape[2], key.shape[2], query.device)
    elif name == "eager" and mask is not None and mask.dtype == torch.bool:
        mask = mask.to(query.dtype)  # the eager functions add it: true adds 1, and hides nothing
    if bias is not None:
        mask = bias if mask is None else bias + additive(mask, bias.dtype)
    return None if mask is None else mask[..., : key.shape[2]]


class Everything(Observer, Follower, Protocol):
    """An observer of attention on all routes."""


@contextmanager
def watch_attention(
    observer: Everything, modules: Sequence[nn.Module] = (), compiles: bool = False
) -> Generator[None]:
    """See every attention call of this thread until the block ends; compiled code runs as plain Python.

    ``compiles`` is for models that compile themselves while they run.
    """
    interface = _Interface(observer)
    loaded = "torch._dynamo" in sys.modules  # without it nothing is compiled
    stance = torch.compiler.set_stance("force_eager") if loaded or compiles else None
    watch = _Watch(observer, interface, WrittenOut(observer), stance)

    def seen(call: Callable[[], Call]) -> None:
        if interface.running:
            return
        if observer.wants(None):
            observer.seen(call(), None)
        else:
            observer.skip(None)

    called_by_name = any(name in sys.modules for name in PACKAGES)
    with (
        stance or nullcontext(),
        _slow_multihead_attention(),
        _watch_interface(interface),
        watch_kernels(modules, seen, unwatched) if called_by_name else nullcontext(),
        watch,
    ):
        yield


@contextmanager
def without_watch() -> Generator[_Watch | None]:
    """Take off the watch over torch's functions, which is yielded; None where it is off already."""
    watch = _get_current_function_mode()
    if not isinstance(watch, _Watch):
        yield None
        return
    with _pop_mode_temporarily():
        yield watch


@contextmanager
def unwatched() -> Generator[None]:
    """Run a kernel out of sight of the watch over torch's functions, compiled where it is."""
    with without_watch() as watch:
        if watch is None or watch.stance is None:
            yield
            return
        watch.stance.__exit__(None, None, None)
        try:
            yield
        finally:
            watch.stance.__enter__()


@contextmanager
def _watch_interface(interface: _Interface) -> Generator[None]:
    # A model of transformers can only exist once its library is imported.
    if "transformers.modeling_utils" not in sys.modules:
        yield
        return
    from transformers import AttentionInterface

    original = AttentionInterface.get_interface

    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return interface.wrap(attn_implementation, original(self, attn_implementation, default))

    with replaced(AttentionInterface, "get_interface", get_interface):
        yield


@contextmanager
def watch_variants(modules: Sequence[nn.Module], observer: VariantObserver) -> Generator[None]:
    """Let our own variants observe themselves while they attend."""
    variants = {child: vars(child).get("attend") for child in modules if isinstance(child, AttentionModule)}
    try:
        for child in variants:
            vars(child)["attend"] = in_this_thread(_observing(child, observer), child.attend)
        yield
    finally:
        for child, before in variants.items():
            if before is None:
                vars(child).pop("attend", None)
            else:  # of a watch around this one
                vars(child)["attend"] = before


def _observing(
    module: AttentionModule, observer: VariantObserver
) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    plain = module.attend

    def attend(
        x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        if not observer.observes(module):
            return plain(x, mask, observe=observe)
        output, inside = plain(x, mask, observe=True)
        output = output.clone() if observer.writes else output
        observer.observed(module, output, inside)
        return output, inside if observe else {}

    return attend


def _of_inputs(mask: Tensor | None, inputs: slice, query: Tensor) -> Tensor | None:
    """Return the mask of some inputs, where it differs between them."""
    differs = mask is not None and mask.ndim == query.ndim and len(mask) == len(query) > 1
    return mask[inputs] if differs else mask


def _four_axes_mask(mask: Tensor, lead: tuple[int, ...]) -> Tensor:
    """A mask that broadcasts against (batch, head, query, key)."""
    if mask.ndim <= 2:
        return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    if len(lead) == 1:
        return mask.unsqueeze(1)
    if len(lead) == 2:
        return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    return mask.expand(*lead[:-1], *mask.shape[-3:]).flatten(0, -4) if mask.ndim > 3 else mask[None]
