"""``capture``: run a model once and keep the operands of its attention; ``Capture``: what that gives."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn

from workbench.captures.effective import EFFECTIVE, watch_scans
from workbench.captures.family import class_path
from workbench.captures.keeper import Keeper, tensors_in
from workbench.captures.labelled_tokens import TokenInfo
from workbench.captures.layer_records import DEFAULT_SITES, SITES, LayerRecord
from workbench.captures.layout import attends_compiled, compiled_parts, is_library_model, module_of
from workbench.captures.position_path import POSITION, watch_positions
from workbench.captures.projections import PROJ_OUT
from workbench.captures.recomputation import TOLERANCE
from workbench.captures.recorder import Overwritten, Recorder
from workbench.captures.routes import (
    Visitor,
    fused_kernels,
    no_cache,
    noting_fast_path,
    watch_attention,
    watch_modules,
    watch_variants,
    without_checkpoints,
    without_kernel,
    zero_padding,
)
from workbench.captures.storage import Contents, read_capture, write_capture
from workbench.captures.thread_guard import CAPTURING
from workbench.captures.token_labels import fit_tokens, token_info
from workbench.core import sources
from workbench.core.errors import InputError, UnknownName, WorkbenchError
from workbench.core.notebook_html import card, fold
from workbench.core.options import Numbers, are_inputs, checked, parse_numbers, ranges


class Placed(dict[str, Any]):
    """Arguments of a model by their names, as it is to get them: on its device and in its types already."""


class LayerNotCaptured(InputError, IndexError):
    """A layer that the capture does not hold."""


@dataclass
class Capture(Contents):
    """The attention calls of one forward pass, in call order.

    ``capture[3]`` is layer 3 whichever layers were asked for; ``capture[-1]`` the last one captured;
    iteration goes in layer order. ``result`` is the model's own output; ``not_run`` names attention modules
    that the forward pass never entered (a cross-attention without an encoder, say);
    ``notes`` say what was kept unchecked, and what of the model was switched off to be seen. ``generated`` is there
    where the model continued its inputs (see `capture_generation`): a query is then a step.
    """

    result: Any = None

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerRecord]:
        return iter(self.layers)

    def __getitem__(self, layer: int) -> LayerRecord:
        if not hasattr(layer, "__index__"):
            raise InputError(
                f"a capture takes one layer, capture[1], not {layer!r}; its list of layers is capture.layers"
            )
        if -len(self.layers) <= layer < 0:
            return self.layers[layer]
        for record in self.layers:
            if record.index == layer:
                return record
        there = ranges([record.index for record in self.layers])
        raise LayerNotCaptured(f"layer {layer} is not in this capture; it holds layers {there}")

    def tokens_of(self, layer: int) -> TokenInfo | None:
        """Return the tokens of a layer's queries, and in ``keys`` those of its keys where they differ."""
        return None if self.tokens is None else self.tokens.of(self[layer])

    def stack(self, site: str) -> Tensor:
        """Return one site of all layers, (layer, batch, …).

        Raises InputError with layer and axis where layers differ in shape.
        """
        values = []
        for record in self.layers:
            value = record.extra.get(site) if site not in SITES else getattr(record, site)
            if value is None:
                raise InputError(f"layer {record.index} ({record.path}) holds no {site!r}")
            values.append(value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64))
        for record, value in zip(self.layers, values, strict=True):
            if value.shape != values[0].shape:
                first = self.layers[0]
                raise InputError(
                    f"{site!r} differs between layers: {tuple(values[0].shape)} in layer {first.index} "
                    f"({first.path}), {tuple(value.shape)} in layer {record.index} ({record.path}); "
                    "read the layers one by one"
                )
        return torch.stack(values)

    def save(self, path: str | Path) -> Path:
        """Write a ``.safetensors`` (any dtype) or ``.npz`` file that ``Capture.load`` and ``--qkv`` read.

        The file appears whole or not at all. Raises MissingResource naming the path where the folder cannot be
        written or is full, InputError for another ending, and for bfloat16 in ``.npz``, which has no such type.
        """
        return write_capture(path, self)

    @classmethod
    def load(cls, path: str | Path) -> Capture:
        """Read what ``save`` wrote, or anyone's file of q, k, v (see `read_qkv`)."""
        return read_qkv(path)

    @property
    def _title(self) -> str:
        named = self.identity(fingerprint=False)
        model = " ".join(filter(None, [named.get("spec") or named.get("class"), named.get("checkpoint")]))
        count = f"{len(self.layers)} {'layer' if len(self.layers) == 1 else 'layers'}"
        steps = f", {self.generated.steps} generated tokens" if self.generated else ""
        return f"Capture of {count}" + (f" of {model}" if model else "") + steps

    def __repr__(self) -> str:
        tokens = f", {len(self.tokens)} × {self.tokens.summary}" if self.tokens else ""
        lines = [f"<{self._title}, sites {', '.join(self.sites)}{tokens}>"]
        return "\n".join(lines + [f"  {record!r}" for record in self.layers])

    def _repr_html_(self) -> str:
        inputs = self.inputs
        facts = {
            "inputs": inputs.get("spec") and f"{inputs['spec']}, n = {inputs['n']}, seed {inputs['seed']}",
            "tokens": self.tokens and f"{len(self.tokens)} × {self.tokens.summary}",
            "sites": ", ".join(self.sites),
            "not run": ", ".join(self.not_run),
            "notes": "; ".join(self.notes),
        }
        return card(self._title, facts, *(fold(record.title, record.sites_table()) for record in self.layers))


@checked
def capture(
    model: Any,
    batch: Any,
    layers: Numbers = None,
    sites: str | Iterable[str] = DEFAULT_SITES,
    check: bool = True,
    keep_nonfinite: bool = False,
    grad: bool = False,
    each: Callable[[LayerRecord, TokenInfo], None] | None = None,
    map_limit: Annotated[int, Ge(0)] | None = None,
    explicit: bool | None = None,
) -> Capture:
    """Run ``model`` on ``batch`` once and return the operands of every attention call, in call order.

    model: what ``load`` returned, or any ``torch.nn.Module``. It runs in the mode (train or eval) it is in,
        with its own fused kernels, and is left as it was, also after an exception.
    batch: a tensor, a tuple of tensors, a dict or any other mapping of tensors (what a tokenizer or processor of
        transformers returns), what ``inputs`` returned, or what ``inputs`` takes: a spec, or a list of texts or
        images (for a model that ``load`` returned). Moved to the model's device.
    layers: which layers to keep: None for all, numbers (negative ones count from the end), or "0,3-5".
    sites: any of input, q, k, v, scale, mask, attn, head_out, resid_pre, attn_out, resid_mid, resid_post, position,
        proj_out and effective (see docs/capture.md).
    check: compare the captured tensors with the model's output. With the site attn everything is compared,
        otherwise a few rows of the first and the last input.
    keep_nonfinite: keep layers with NaN or infinite values, unchecked, with a line in the capture's ``notes``.
    grad: keep the autograd graph; otherwise the model runs without gradients. The output of a fused kernel does not
        depend on the recorded ``attn``: give ``explicit=True`` for gradients of the weights.
    each: gets every layer, with the tokens, as soon as it is complete and checked, while the model runs: once, in the
        order of the calls, also where the model must run a second time because it overwrote what was kept. The capture
        then holds no layers: a layer is freed before the next unless the function keeps it, and tensors of a model that
        works in place must be copied. It may raise to stop the run. With negative ``layers`` it gets them at the
        end, when it is known which they are.
    map_limit: the site attn is not formed where it would have more entries than this (heads × queries × keys, of each
        input) and follows from its operands: q, k, scale and mask are kept instead.
    explicit: multiply the recorded map with the values in place of the fused kernel, which runs for the first input
        only and is compared. Faster, and the model's output is then equal up to rounding. None: only layers whose model
        forms a map itself share it with the record.

    Raises IncompleteCapture where a layer of a library model was missed or does not reproduce its output (for
    a user's own module a missed layer is a warning), InputError for layers or sites that do not exist and,
    with ``check``, for NaN or infinite values unless they are kept. Attention is computed in float32 or wider.
    """
    module = module_of(model)
    sites = check_sites(sites)
    chosen = parse_numbers("layer", layers)
    tensors, chosen_inputs = tensors_and_inputs(batch, model)
    arguments = batch_on_device(tensors, module)
    batch_tensors = tensors_in(arguments)
    if batch_tensors and not any(tensor.numel() for tensor in batch_tensors):
        raise InputError(
            f"the batch is empty: {', '.join(str(tuple(tensor.shape)) for tensor in batch_tensors)}"
        )
    name = getattr(model, "spec", None) or type(module).__name__
    if check:
        refuse_meta(module, name)

    input_tokens = getattr(chosen_inputs, "tokens", None)

    @functools.cache
    def tokens(count: int | None, attended: Tensor | None) -> TokenInfo:
        return fit_tokens(
            token_info(model, arguments, count) if input_tokens is None else input_tokens, count, attended
        )

    give = None if each is None else lambda record, *axis: each(record, tokens(*axis).of(record))
    handed: set[int] = set()

    modules = visible_modules(module, name)
    owned = owned_tensors(modules)
    if explicit is None and without_kernel(modules.values()):
        explicit = True

    def run(copy: bool) -> Recorder:
        keeper = Keeper([*owned, *batch_tensors], copy)
        recorder = Recorder(
            modules,
            name,
            keeper,
            chosen,
            sites,
            check,
            keep_nonfinite,
            give,
            handed,
            map_limit,
            explicit=explicit,
        )
        _run(recorder, arguments, grad)
        return recorder

    random = torch.get_rng_state()
    try:
        recorder = run(copy=False)
        again = recorder.keeper.changed()
    except Overwritten:
        again = True
    if again:
        # The model overwrote in place what had been kept without a copy: once more, copying.
        torch.set_rng_state(random)
        recorder = run(copy=True)
    records = recorder.selected()
    if each is not None:
        recorder.give(records)
    strict = module is not model or is_library_model(module)
    not_run = recorder.completeness.check(recorder.numbers.count, strict) if check else []

    return Capture(
        layers=records,
        sites=tuple(site for site in sites if site in SITES),
        tokens=tokens(recorder.token_count, recorder.attended),
        inputs={key: getattr(chosen_inputs, key, None) for key in ("spec", "n", "seed", "sha256")},
        result=recorder.result,
        not_run=not_run,
        notes=[*recorder.notes, *switched(model, recorder)],
        identity=identity_of(model, module),
    )


def visible_modules(module: nn.Module, name: str) -> dict[str, nn.Module]:
    """Return a model's modules by path. Raises InputError where attention in one cannot be seen."""
    modules = dict(module.named_modules())
    for path, child in modules.items():
        if isinstance(child, torch.jit.ScriptModule) and attends_compiled(child):
            raise InputError(
                f"{name}: {path or 'it'} is a ScriptModule, and attention inside one cannot be seen; "
                "capture the module that it was scripted from"
            )
    return modules


def owned_tensors(modules: Mapping[str, nn.Module]) -> list[Tensor]:
    """Return the parameters and buffers of all modules."""
    return [
        t for m in modules.values() for t in (*m._parameters.values(), *m._buffers.values()) if t is not None
    ]


def read_qkv(path: str | Path) -> Capture:
    """Read a capture, or anyone's q, k, v, from ``.safetensors``, ``.npz``, or tensors that ``torch.save`` wrote.

    q, k and v have 3 to 5 axes ending in (token, head_dim): (head, …), (batch, head, …) or (layer, batch,
    head, …); k and v may have fewer heads than q, and their own number of tokens. Optional: ``scale``
    (default 1/√head_dim), one number or one per layer; ``mask``, true = attend, (batch, token) or (batch,
    head, query, key); ``attn``, weights that are used in place of softmax(scale q kᵀ + mask).

    What other tools keep is known by its names: a cache of TransformerLens (``blocks.0.attn.hook_q`` …), transformers'
    ``attentions``, with ``q.0``, ``k.0``, ``v.0`` where given, and outputs of projections by their paths, as nnsight
    saves them, with ``num_heads``.

    Raises InputError saying which tensor and axis is wrong, or where a value is NaN or infinite.
    """
    return Capture(**read_capture(path))


def check_sites(sites: Iterable[str]) -> tuple[str, ...]:
    """Return the sites in their order. Raises InputError for one that does not exist, or for none."""
    names = list(sites) if isinstance(sites, Iterable) and not isinstance(sites, str) else [sites]
    choices = (*SITES, POSITION, PROJ_OUT, EFFECTIVE)
    for name in names:
        if name not in choices:
            hint = "a mechanism's further sites, such as membership, are captured without a request"
            raise UnknownName("site", str(name), choices, hint)
    if not names:
        raise InputError(f"sites is empty: choose from {', '.join(choices)}")
    if PROJ_OUT in names:  # it is recognised by the outputs of the heads
        names.append("head_out")
    return tuple(site for site in choices if site in names)


def refuse_meta(module: nn.Module, name: str) -> None:
    """Raise InputError for weights on the device "meta", which have no values.

    Weights that accelerate offloads have values while their module runs.
    """
    weights = next((path for path, value in module.named_parameters() if value.is_meta), None)
    if weights is not None and not any(hasattr(child, "_hf_hook") for child in module.modules()):
        raise InputError(
            f"{name}: {weights} is on the device 'meta' and has no values; load the weights, or create the model on "
            "another device"
        )


def is_plain(batch: Any) -> bool:
    """Return whether a batch is only tensors: a mapping with a key or method "tokens" has no token labels."""
    return isinstance(batch, (Tensor, Mapping, Sequence))


def tensors_and_inputs(batch: Any, model: Any) -> tuple[Any, Any]:
    """Return the tensors of a batch, and what ``inputs`` returned where the batch is that, else None.

    A spec and a list of texts or images are made a batch for the model.
    """
    if are_inputs(batch):
        batch = sources.INPUTS[0](batch, model)
    return (batch, None) if is_plain(batch) else (getattr(batch, "batch", batch), batch)


def batch_on_device(batch: Any, module: nn.Module) -> Any:
    """Return the batch on the model's device, with float inputs in the model's precision.

    Of weights in several precisions only a first one of 16 bits decides.
    """
    if isinstance(batch, Placed):
        return batch
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    parameter = parameters[0] if parameters else None
    decides = len({p.dtype for p in parameters}) == 1 or (parameter is not None and parameter.itemsize == 2)

    def move(value: Any) -> Any:
        if _are_numbers(value):
            raise InputError(
                "the batch holds lists of numbers where tensors are needed; a tokenizer makes tensors with "
                "return_tensors='pt'"
            )
        if isinstance(value, Tensor) and value.is_meta:
            raise InputError(
                "the batch is on the device 'meta', where tensors have no values; make it on the CPU"
            )
        if not isinstance(value, Tensor) or parameter is None:
            return value
        if parameter.is_meta:  # offloaded: accelerate brings weights and batch together
            return value
        converted = decides and value.is_floating_point() and parameter.dtype in TOLERANCE
        return value.to(parameter.device, parameter.dtype if converted else None)

    if isinstance(batch, Tensor):
        return move(batch)
    if isinstance(batch, Mapping):
        return {key: move(value) for key, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        move(batch)
        return tuple(move(value) for value in batch)
    raise InputError(
        f"batch must be a tensor, a mapping or tuple of tensors, or inputs(), not {type(batch).__name__}"
    )


def _are_numbers(value: Any) -> bool:
    """Whether a value is a list, or a list of lists, of numbers."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return True
    return False


def identity_of(model: Any, module: nn.Module) -> Any:
    """Return a function that names the model; it computes the fingerprint on demand while the model is alive."""
    fixed = {key: getattr(model, key, None) for key in ("spec", "checkpoint")}
    alive, kind = weakref.ref(model), type(module)

    def identity(fingerprint: bool = True) -> dict[str, Any]:
        fixed.setdefault("class", class_path(kind))
        if not fingerprint:
            return dict(fixed)
        fixed.setdefault("fingerprint", getattr(alive(), "fingerprint", None))
        return dict(fixed)

    return identity


@contextmanager
def watching(
    recorder: Recorder, visitor: Visitor | None = None, grad: bool = False, cached: bool = False
) -> Generator[None]:
    """Have the recorder follow every pass of its model by every route.

    ``visitor`` gets the passes through modules in its place; ``cached`` leaves the model its cache.
    """
    children = list(recorder.modules.values())
    with ExitStack() as stack:
        stack.enter_context(CAPTURING)
        # Inference tensors could not be used later in place or with gradients.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad() if grad else torch.no_grad())
        stack.enter_context(noting_fast_path(children, recorder.miss_fast_path))
        if grad:
            stack.enter_context(without_checkpoints(recorder.miss_checkpoint))
        stack.enter_context(fused_kernels(children))
        if not cached:
            stack.enter_context(no_cache(children))
        stack.enter_context(recorder.stream.watch())
        if EFFECTIVE in recorder.sites:
            mixers = [recorder.modules[path] for path in recorder.visits.mixers]
            if not mixers:
                raise InputError(
                    f"{recorder.name} has no state-space or linear layer, so no 'effective'; capture 'attn'"
                )
            stack.enter_context(watch_scans(mixers, recorder.scanned))
        if POSITION in recorder.sites:
            recorder.positions = stack.enter_context(watch_positions(recorder.modules[""], recorder.name))
        stack.enter_context(watch_modules(children, visitor or recorder, recorder.miss_thread))
        stack.enter_context(watch_variants(children, recorder))
        stack.enter_context(zero_padding(children))
        # off the CPU a model with a static cache compiles itself to generate
        device = next((parameter.device.type for parameter in children[0].parameters()), "cpu")
        stack.enter_context(watch_attention(recorder, children, compiles=cached and device != "cpu"))
        yield


def _run(recorder: Recorder, arguments: Any, grad: bool) -> None:
    """Run the recorder's model once, seen by every route."""
    module = recorder.modules[""]
    # whether a cache is there decides how models read positions that start anew
    cached = isinstance(arguments, dict) and arguments.get("position_ids") is not None
    with watching(recorder, grad=grad, cached=cached), noting_batch_shapes(recorder.name, arguments):
        recorder.result = call_model(module, arguments)
    if recorder.failure is not None:
        raise recorder.failure


def call_model(module: nn.Module, arguments: Any) -> Any:
    """Return the output of a model for a tensor, a dictionary of arguments, or several arguments."""
    if isinstance(arguments, Tensor):
        return module(arguments)
    return module(**arguments) if isinstance(arguments, dict) else module(*arguments)


@contextmanager
def noting_batch_shapes(name: str, arguments: Any) -> Generator[None]:
    """Add types and shapes of the batch to an exception of the model; refuse images of integers in words."""
    try:
        yield
    except WorkbenchError:
        raise
    except Exception as error:
        for tensor in tensors_in(arguments):
            if tensor.ndim > 2 and not tensor.is_floating_point() and "type" in str(error):
                raise InputError(
                    f"{name} was given whole numbers, {tensor.dtype} {tuple(tensor.shape)}, and computes with floats; "
                    "give workbench.inputs the images, or convert them as the model's transform does "
                    "(batch.float() / 255, less the mean, over the standard deviation)"
                ) from error
        shapes = ", ".join(f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors_in(arguments))
        error.add_note(f"{name} was given: {shapes}")
        raise


def switched(model: Any, recorder: Recorder) -> list[str]:
    """Return notes on changes in how the model ran, made where attention cannot be seen otherwise."""
    notes, modules = [], recorder.modules
    compiled = compiled_parts(modules)
    original = model if isinstance(model, nn.Module) else model.module
    original = original.module if isinstance(original, nn.parallel.DistributedDataParallel) else original
    if not compiled and original is not modules[""]:
        compiled = ["the model"]
    if compiled:
        more = f" and {len(compiled) - 1} more" if len(compiled) > 1 else ""
        notes.append(
            f"compiled code is not entered: {compiled[0]}{more} ran as plain Python, which may round otherwise"
        )
    if recorder.checkpointed:
        notes.append(
            "activation checkpointing was off during the capture, which takes more memory and changes no value"
        )
    if recorder.other_threads:
        notes.append("the model also ran in other threads, whose passes are not in the capture")
    if recorder.fast_path_off:
        notes.append(
            "torch's fast path for nn.TransformerEncoder and nn.MultiheadAttention was off during the capture"
        )
    return notes
