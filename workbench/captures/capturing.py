"""``capture``: run a model once and keep the operands of its attention."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from workbench.captures.by_class import class_path
from workbench.captures.keeping import Keeper, tensors_in
from workbench.captures.layout import is_library_model
from workbench.captures.positions import POSITION, watch_positions
from workbench.captures.recorder import Overwritten, Recorder
from workbench.captures.records import DEFAULT_SITES, SITES, LayerRecord, TokenInfo
from workbench.captures.result import Capture
from workbench.captures.routes import (
    fused_kernels,
    no_cache,
    watch_attention,
    watch_modules,
    watch_variants,
)
from workbench.captures.tokens import fit_tokens, token_info
from workbench.core.errors import InputError, UnknownName, WorkbenchError
from workbench.core.selection import Numbers, parse_numbers


def capture(
    model: Any,
    batch: Any,
    layers: Numbers = None,
    sites: Iterable[str] = DEFAULT_SITES,
    check: bool = True,
    keep_nonfinite: bool = False,
    grad: bool = False,
    each: Callable[[LayerRecord, TokenInfo], None] | None = None,
) -> Capture:
    """Run ``model`` on ``batch`` once and return the operands of every attention call, in call order.

    model: what ``load`` returned, or any ``torch.nn.Module``. It runs in the mode (train or eval) it is in,
        with its own fused kernels, and is left as it was, also after an exception.
    batch: a tensor, a dict or a tuple of tensors, or what ``inputs`` returned. Moved to the model's device.
    layers: which layers to keep: None for all, numbers (negative ones count from the end), or "0,3-5".
    sites: any of input, q, k, v, scale, mask, attn, head_out, resid_pre, attn_out, resid_mid, resid_post, and position
        (see docs/capture.md).
    check: compare what was captured with what the model computed. With the site attn everything is compared,
        otherwise a few rows of every input.
    keep_nonfinite: keep layers with NaN or infinite values, unchecked, and say so in the capture's ``notes``.
    grad: keep the autograd graph; otherwise the model runs without gradients.
    each: gets every layer, with the tokens, as soon as it is complete and checked, while the model runs: once, in the
        order of the calls, also where the model must run a second time because it overwrote what was kept. The capture
        then holds no layers: what the function does not keep is freed before the next, and what it keeps it must copy
        from a model that works in place. It may raise to stop the run. With negative ``layers`` it gets them at the
        end, when it is known which they are.

    Raises IncompleteCapture where a layer of a library model was missed or does not reproduce its output (for
    a user's own module a missed layer is a warning), InputError for layers or sites that do not exist and,
    with ``check``, for NaN or infinite values unless they are kept. Attention is computed in float32 or wider.
    """
    module = model.module if not isinstance(model, nn.Module) and hasattr(model, "module") else model
    if not isinstance(module, nn.Module):
        raise InputError(
            f"model must be what load() returned or a torch.nn.Module, not {type(model).__name__}"
        )
    module = getattr(
        module, "_orig_mod", module
    )  # torch.compile's wrapper; its compiled code hides the attention
    sites = _check_sites(sites)
    chosen = parse_numbers("layer", layers)
    arguments = _place(getattr(batch, "batch", batch), module)
    given = tensors_in(arguments)
    if given and not any(tensor.numel() for tensor in given):
        raise InputError(f"the batch is empty: {', '.join(str(tuple(tensor.shape)) for tensor in given)}")
    name = getattr(model, "spec", None) or type(module).__name__

    known = getattr(batch, "tokens", None)

    @functools.cache
    def tokens(count: int | None) -> TokenInfo:
        return fit_tokens(token_info(model, arguments, count) if known is None else known, count)

    give = None if each is None else lambda record, count: each(record, tokens(count))
    handed: set[int] = set()

    def run(copy: bool) -> Recorder:
        return _run(module, name, arguments, chosen, sites, check, keep_nonfinite, grad, copy, give, handed)

    try:
        recorder = run(copy=False)
        again = recorder.keeper.changed()
    except Overwritten:
        again = True
    if again:
        # The model overwrote in place what had been kept without a copy: once more, copying.
        recorder = run(copy=True)
    records = recorder.selected()
    if each is not None:
        recorder.give(records)
    not_run = recorder.completeness(strict=module is not model or is_library_model(module)) if check else []

    return Capture(
        layers=records,
        sites=tuple(site for site in sites if site in SITES),
        tokens=tokens(recorder.token_count),
        inputs={key: getattr(batch, key, None) for key in ("spec", "n", "seed", "sha256")},
        result=recorder.result,
        not_run=not_run,
        notes=recorder.notes,
        identity=_identity(model, module),
    )


def _check_sites(sites: Iterable[str]) -> tuple[str, ...]:
    asked = [sites] if isinstance(sites, str) else list(sites)
    known = (*SITES, POSITION)
    for site in asked:
        if site not in known:
            own = "sites of an attention of its own, such as membership, come along unasked"
            raise UnknownName("site", str(site), known, own)
    if not asked:
        raise InputError(f"sites is empty: choose from {', '.join(known)}")
    return tuple(site for site in known if site in asked)


def _place(batch: Any, module: nn.Module) -> Any:
    """The batch on the model's device; float inputs of a half-precision model in its precision."""
    parameter = next((p for p in module.parameters() if p.is_floating_point()), None)

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor) or parameter is None:
            return value
        half = parameter.dtype in (torch.float16, torch.bfloat16) and value.is_floating_point()
        return value.to(parameter.device, parameter.dtype if half else None)

    if isinstance(batch, Tensor):
        return move(batch)
    if isinstance(batch, Mapping):
        return {key: move(value) for key, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(move(value) for value in batch)
    raise InputError(
        f"batch must be a tensor, a dict or tuple of tensors, or inputs(), not {type(batch).__name__}"
    )


def _identity(model: Any, module: nn.Module) -> Any:
    """What names the model, with its fingerprint left to be computed on demand while the model is alive."""
    fixed = {
        "spec": getattr(model, "spec", None),
        "checkpoint": getattr(model, "checkpoint", None),
        "class": class_path(module),
    }
    alive = weakref.ref(model)

    def identity() -> dict[str, Any]:
        fixed.setdefault("fingerprint", getattr(alive(), "fingerprint", None))
        return dict(fixed)

    return identity


def _run(
    module: nn.Module,
    name: str,
    arguments: Any,
    chosen: tuple[int, ...] | None,
    sites: tuple[str, ...],
    check: bool,
    keep_nonfinite: bool,
    grad: bool,
    copy: bool,
    each: Callable[[LayerRecord, int | None], None] | None,
    handed: set[int],
) -> Recorder:
    modules = dict(module.named_modules())
    children = list(modules.values())
    owned = [t for m in children for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    keeper = Keeper([*owned, *tensors_in(arguments)], copy)
    recorder = Recorder(modules, name, chosen, sites, check, keep_nonfinite, keeper, each, handed)
    with ExitStack() as stack:
        # inference_mode(False): inference tensors could not be used in later computations in place or with
        # gradients.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad() if grad else torch.no_grad())
        stack.enter_context(_eager(children))
        stack.enter_context(fused_kernels(children))
        stack.enter_context(no_cache(children))
        stack.enter_context(recorder.watch_residual_stream())
        if POSITION in sites:
            recorder.positions = stack.enter_context(watch_positions(module, name))
        stack.enter_context(watch_modules(children, recorder))
        stack.enter_context(watch_variants(children, recorder))
        stack.enter_context(watch_attention(recorder))
        try:
            if isinstance(arguments, Tensor):
                recorder.result = module(arguments)
            elif isinstance(arguments, dict):
                recorder.result = module(**arguments)
            else:
                recorder.result = module(*arguments)
        except WorkbenchError:
            raise
        except Exception as error:
            # What a model says of a batch that it cannot take is its own affair; what the batch was is ours.
            held = ", ".join(f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors_in(arguments))
            error.add_note(f"{name} was given: {held}")
            raise
    if recorder.failure is not None:
        raise recorder.failure
    return recorder


def _eager(modules: list[nn.Module]) -> Any:
    """Run compiled submodules as plain Python."""
    compiled = any(
        "_orig_mod" in m._modules or vars(m).get("_compiled_call_impl") is not None for m in modules
    )
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
