"""``intervene``: change what heads compute while a model runs, and leave the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.captures.capturing import Capture, visible_modules, watching
from workbench.captures.family import Visit, adapter_of
from workbench.captures.keeper import Keeper, address, first_tensor
from workbench.captures.layer_records import Call, LayerRecord
from workbench.captures.layout import (
    after_attention,
    attention_modules,
    before_attention,
    block_path,
    module_of,
    reads_block,
    resid_post_reading,
)
from workbench.captures.recomputation import TOLERANCE, attention_weights
from workbench.captures.recorder import Recorder
from workbench.core.errors import InputError, UnknownName
from workbench.core.options import checked

INTERVENTION_SITES = ("q", "k", "v", "attn", "head_out", "resid_pre", "resid_mid", "resid_post")
"""Sites that `intervene` can change."""
_STREAM = ("resid_pre", "resid_mid", "resid_post")
_NAMED = {
    "zero": INTERVENTION_SITES,
    "mean": ("q", "k", "v", "head_out", *_STREAM),
    "uniform": ("attn",),
}
_ROW_TOLERANCE = 1e-3

Value = str | Tensor | Capture | LayerRecord | Callable[[Tensor], Tensor]
"""A replacement: "zero", "mean", "uniform", a tensor, a capture of other inputs, or a function of the site."""


@checked
@contextmanager
def intervene(
    model: Any,
    changes: Any,
    site: str = "head_out",
    *,
    tokens: Sequence[int] | None = None,
    inputs: Sequence[int] | None = None,
    normalise: bool = False,
    kv: bool = False,
) -> Generator[None]:
    """Change a site of some heads in every forward pass of ``model`` inside the block.

        with workbench.intervene(model, {(3, 2): "zero"}):  # head 2 of layer 3
            logits = model.module(batch)
        with workbench.intervene(model, {(5, "*"): lambda attn: attn.flip(-1)}, site="attn"):
            ...

    Fused kernels stay in use. The site ``head_out`` is replaced in the kernel's own output; for ``q``, ``k``, ``v`` and
    ``attn`` the outputs of the changed heads are computed as softmax(scale q kᵀ + mask) v in float32 or wider, once
    this product reproduces the model's own output. All other heads keep theirs bit for bit. The model is left
    unchanged, also after an exception; blocks can be nested, and run with gradients, in generation, or around `capture`
    (with ``check=False``, since the changed output is not that of the captured operands).

    Args:
        model: the result of ``load``, or any ``torch.nn.Module``.
        changes: (layer, head) → value, with layers and heads counted from 0 as in `capture`; the head "*" means all.
            A value is "zero"; "mean" (over the tokens of each input); "uniform" (equal attention to all visible keys,
            site attn); a tensor that broadcasts against the site; a `Capture` or a `LayerRecord` of other inputs
            (activation patching); or a function of the site. Shapes of one head: head_out, q, k and v
            (batch, token, head_dim), attn (batch, query, key), the three of the stream (batch, token, width).
        site: "q", "k", "v", "attn", "head_out", or "resid_pre", "resid_mid", "resid_post", which take (layer, "*").
        tokens: which queries to change (of k and v: which keys); None for all.
        inputs: which rows of the batch to change, or which of the images that a model packs into one; None for all.
        normalise: divide changed rows of ``attn`` by their sums; otherwise they must sum to one.
        kv: count heads of k and v by groups of keys, where several query heads share one.

    Raises InputError for a layer that did not run, for a head, shape or value that does not fit, and for layers whose
    site cannot be changed: attention that a family's adapter reads after the fact, and q, k, v or attn of a layer whose
    output is not attn v.
    """
    if site not in INTERVENTION_SITES:
        raise UnknownName("site", str(site), INTERVENTION_SITES, "intervene changes no other site")
    plan = _plan(changes, site)
    module = module_of(model)
    name = getattr(model, "spec", None) or type(module).__name__
    selection = _Selection(tokens, inputs, normalise, kv)
    intervener = _Intervener(
        visible_modules(module, name), name, Keeper([]), tuple(plan), (), check=False, plan=plan, site=site,
        selection=selection,
    )  # fmt: skip
    with watching(intervener, grad=torch.is_grad_enabled(), cached=True), intervener.watching_stream():
        yield
    if intervener.failure is not None:
        raise intervener.failure
    missing = sorted(set(plan) - intervener.changed)
    if intervener.finished and missing:
        raise InputError(
            f"{name}: layer {missing[0]} has no {site} that could be changed; the pass had "
            f"{intervener.numbers.count} layers, counted from 0"
        )


def _plan(changes: Any, site: str) -> dict[int, dict[int | str, Value]]:
    """Return the values by layer and head."""
    if not isinstance(changes, Mapping) or not changes:
        raise InputError(
            f"changes maps (layer, head) to a value, such as {{(3, 2): 'zero'}}, not {changes!r}"
        )
    plan: dict[int, dict[int | str, Value]] = {}
    for key, value in changes.items():
        layer, head = key if isinstance(key, tuple) and len(key) == 2 else (key, "*")
        if not _is_number(layer) or (head != "*" and not _is_number(head)):
            raise InputError(f"a change is for (layer, head), counted from 0, or (layer, '*'), not {key!r}")
        if site in _STREAM and head != "*":
            raise InputError(f"{site} has no heads; give ({layer}, '*'), not {key!r}")
        named = isinstance(value, str) and site in _NAMED.get(value, ())
        if not (named or callable(value) or isinstance(value, (Tensor, Capture, LayerRecord))):
            names = [name for name, sites in _NAMED.items() if site in sites]
            raise InputError(
                f"{value!r} is no value for {site}; give {', '.join(names)}, a tensor, a capture or a function"
            )
        plan.setdefault(layer, {})[head] = value
    return plan


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True)
class _Selection:
    """Which entries of a site are changed, and how."""

    tokens: Sequence[int] | None
    inputs: Sequence[int] | None
    normalise: bool
    kv: bool

    def apply(
        self,
        value: Value,
        part: Tensor,
        site: str,
        donor: Callable[[LayerRecord], Tensor],
        name: str,
        packed: int | None = None,
    ) -> Tensor:
        """Return a part (batch, token, …) with the value in its chosen entries.

        ``packed`` is the number of an image that the model computes by itself, without the padding of the batch.
        """
        if isinstance(value, LayerRecord):
            value = donor(value)
        if packed is not None and isinstance(value, Tensor):
            value = _row_of(value, packed, part)
        elif isinstance(value, str):
            axes = tuple(range(1, part.ndim - 1))  # of the tokens: rows and columns of a grid
            value = torch.zeros_like(part) if value == "zero" else part.mean(axes, keepdim=True)
        elif not isinstance(value, Tensor):
            value = value(part.clone())  # ty: ignore[not-callable] - strings, tensors and captures are handled above
        if not isinstance(value, Tensor):
            raise InputError(
                f"{name}: the function returned a {type(value).__name__}, not a tensor; "
                f"{site} has {tuple(part.shape)} here"
            )
        try:
            value = value.to(part).expand_as(part)
        except RuntimeError:
            raise InputError(
                f"{name}: the value has shape {tuple(value.shape)}; {site} has {tuple(part.shape)} here"
            ) from None
        if self.tokens is not None and part.ndim != 3:
            raise InputError(f"{name}: its tokens are a grid of {tuple(part.shape[1:-1])}; leave out tokens=")
        chosen = torch.ones(part.shape[:2], dtype=torch.bool, device=part.device)
        inputs, tokens = self.inputs, self.tokens
        if packed is not None:
            inputs = inputs if inputs is None else [0] if packed in inputs else []
            tokens = tokens if tokens is None else [token for token in tokens if token < part.shape[1]]
        for axis, rows in enumerate((inputs, tokens)):
            if rows is not None:
                chosen &= _mark(rows, part.shape[axis], ("inputs", "tokens")[axis], part.device).unsqueeze(
                    1 - axis
                )
        return torch.where(chosen.reshape(*chosen.shape, *[1] * (part.ndim - 2)), value, part)


def _row_of(value: Tensor, number: int, part: Tensor) -> Tensor:
    """Return the row of an image from a value for all images (image, token, …), without the padding of shorter ones."""
    if value.ndim < part.ndim:
        return value
    if len(value) > 1:
        value = value[number : number + 1]
    sizes = zip(value.shape[1:], part.shape[1:], strict=True)
    return value[(slice(None), *(slice(size) if most > size else slice(None) for most, size in sizes))]


def _mark(rows: Sequence[int], size: int, what: str, device: torch.device) -> Tensor:
    marked = torch.zeros(size, dtype=torch.bool, device=device)
    try:
        marked[torch.as_tensor(list(rows), dtype=torch.long, device=device)] = True
    except (IndexError, TypeError, ValueError):
        raise InputError(f"{what} are numbers from 0 to {size - 1}, not {rows!r}") from None
    return marked


@dataclass(eq=False)
class _Intervener(Recorder):
    """Follow the passes of a model as a `Recorder` does, and change calls instead of recording them."""

    writes: ClassVar[bool] = True

    plan: dict[int, dict[int | str, Value]] = field(default_factory=dict)
    site: str = "head_out"
    selection: _Selection = field(default_factory=lambda: _Selection(None, None, False, False))
    changed: set[int] = field(default_factory=set)
    passes: int = 0
    finished: bool = False
    """Whether a pass of the model has returned an output."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is self.modules[""] and not self.visits.frames:
            self.numbers.repeats = self.passes > 0
            self.numbers.begin(0)
            self.passes += 1
        super().enter(module, args, kwargs)

    def leave(self, module: nn.Module, output: Any) -> None:
        super().leave(module, output)
        self.finished |= module is self.modules[""] and output is not None

    def seen(self, call: Call, module: nn.Module | None) -> None:
        adapted = self.visits.adapted(self.visits.innermost(module))
        before = 0 if adapted is None else len(adapted.visit.calls)
        adapter = None if adapted is None else adapter_of(type(adapted.visit.module))
        if adapter is not None and adapter.joins:
            self.change(self.numbers.count, call, packed=before)
        else:
            self.change(self.numbers.count + before, call)
        super().seen(call, module)

    def observed(self, module: nn.Module, output: Tensor, inside: dict[str, Any]) -> None:
        self.numbers.find(self.visits.innermost(module).visit.path)
        operands: Any = {site: inside.get(site) for site in ("q", "k", "v", "scale", "mask", "attn")}
        kind = str(getattr(module, "attends", "none"))
        self.change(self.numbers.count, Call(**operands, head_out=output, kind=kind))
        super().observed(module, output, inside)

    def record(self, call: Call, visit: Visit) -> None:
        index = self.numbers.count
        self.numbers.advance(visit.path)
        if index in self.plan and self.site not in _STREAM and index not in self.changed:
            raise InputError(
                f"{self.name}, layer {index} ({visit.path}): its family's adapter reads the attention once it has run, "
                "so it cannot be changed"
            )

    def change(self, index: int, call: Call, packed: int | None = None) -> None:
        """Write the changed outputs of a layer's heads into its output, or those of one image of several."""
        if index not in self.plan or self.site in _STREAM:
            return
        name = f"{self.name}, layer {index}"
        with self.visits.outside_model():
            if self.site == "head_out":
                for head, part in self.parts(index, call.head_out.shape[1], name):
                    out = call.head_out[:, head]
                    new = self.selection.apply(
                        part, out, "head_out", lambda of, h=head: _donated(of, "head_out", h), name, packed
                    )
                    call.head_out[:, head] = new
            else:
                self.recompute(index, call, name, packed)
        self.changed.add(index)

    def parts(self, index: int, heads: int, name: str) -> list[tuple[int, Value]]:
        """Return the value of every changed head of a layer; a capture gives each the record of its layer."""
        chosen: dict[int, Value] = {}
        for head, value in sorted(self.plan[index].items(), key=lambda item: item[0] != "*"):
            if isinstance(head, int) and head >= heads:
                raise InputError(f"{name}: there is no head {head}; heads are 0 to {heads - 1}")
            value = value[index] if isinstance(value, Capture) else value
            for number in [head] if isinstance(head, int) else range(heads):
                chosen[number] = value
        return sorted(chosen.items())

    def recompute(self, index: int, call: Call, name: str, packed: int | None = None) -> None:
        """Compute the outputs of heads from changed operands, where these give the model's own output unchanged."""
        if call.kind != "token" or call.recompute is not None or call.v is None:
            raise InputError(
                f"{name}: its output is not attn v, so {self.site} cannot be changed; change head_out"
            )
        if call.attn is not None and self.site in ("q", "k"):
            raise InputError(
                f"{name}: its weights are not softmax(scale q kᵀ + mask), so {self.site} cannot be changed"
            )
        if call.dropout:
            raise InputError(f"{name}: dropout of the weights is on; call eval() on the model first")
        heads, groups = call.q.shape[1], call.v.shape[1]
        grouped = self.selection.kv and self.site in ("k", "v")
        values = self.parts(index, groups if grouped else heads, name)
        group = heads // groups
        rows = [g * group + i for g, _ in values for i in range(group)] if grouped else [h for h, _ in values]
        by_head = dict(values)
        q, k, v = (
            call.q[:, rows],
            call.k[:, [h // group for h in rows]],
            call.v[:, [h // group for h in rows]],
        )
        plain = _weights(call, rows, q, k)
        self.check_product(call.head_out[:, rows], plain @ v.to(plain.dtype), name)
        operands = {"q": q, "k": k, "v": v, "attn": plain}
        old = operands[self.site]

        new = []
        for row, head in enumerate(rows):
            value = by_head[head // group if grouped else head]
            if isinstance(value, str) and value == "uniform":
                value = _uniform(call, head, plain[:, row])
            new.append(
                self.selection.apply(
                    value,
                    old[:, row],
                    self.site,
                    lambda of, h=head: _donated(of, self.site, h, heads),
                    name,
                    packed,
                )
            )
        operands[self.site] = torch.stack(new, 1)
        attn = operands["attn"]
        if self.site in ("q", "k"):
            attn = _weights(call, rows, operands["q"], operands["k"])
        elif self.site == "attn":
            attn = self.rows_of_one(attn, plain, name)
        call.head_out[:, rows] = (attn @ operands["v"].to(attn.dtype)).to(call.head_out.dtype)

    def rows_of_one(self, attn: Tensor, before: Tensor, name: str) -> Tensor:
        """Return attention whose rows sum to one where they did before."""
        sums = attn.sum(-1, keepdim=True)
        if self.selection.normalise:
            return torch.where(sums > 0, attn / sums.clamp(min=torch.finfo(attn.dtype).tiny), attn)
        off = ((sums - before.sum(-1, keepdim=True)).abs()).max().item()
        if off > _ROW_TOLERANCE:
            raise InputError(
                f"{name}: changed rows of attn differ from a sum of one by {off:.2g}; give normalise=True, or change "
                "head_out to take a head's output away"
            )
        return attn

    def check_product(self, output: Tensor, product: Tensor, name: str) -> None:
        """Raise `InputError` where attn v is not what the model computed."""
        size = output.detach().abs().max().clamp(min=torch.finfo(torch.float32).tiny)
        error = float((product.detach() - output.detach().to(product.dtype)).abs().max() / size)
        if not error <= TOLERANCE.get(output.dtype, 5e-2):
            raise InputError(
                f"{name}: attn v differs from the model's own output by {error:.2g} of its largest value, so "
                f"{self.site} cannot be changed; change head_out"
            )

    # The residual stream ----------------------------------------------------------------------------------

    @contextmanager
    def watching_stream(self) -> Generator[None]:
        """Change the stream in front of, inside or behind the blocks of the chosen layers."""
        with ExitStack() as stack:
            root = self.modules[""]
            for path, _ in attention_modules(root) if self.site in _STREAM else ():
                block = block_path(root, path)
                if block is None:
                    continue
                if self.site == "resid_mid":
                    inside = path[len(block) :].lstrip(".")
                    if reads_block(self.modules[block], self.modules[path]):
                        stack.callback(self.hook_inside(self.modules[block], path, inside).close)
                elif before_attention(self.modules[block]) is not None:
                    stack.callback(self.hook(self.modules[block], path).remove)
            yield

    def hook_inside(self, block: nn.Module, path: str, attention: str) -> ExitStack:
        """Return the hook that changes the stream between attention and MLP.

        The tensor is overwritten, since the norm and the skip connection behind it read the same one.
        """
        reading, stack = after_attention(block, attention), ExitStack()

        def write(value: Any) -> None:
            index = self.numbers.first.get((path, self.numbers.calls[path] - 1), -1)
            if index not in self.plan:
                return
            stream = first_tensor(value)
            single = reading is not None and reading.combine is None and len(reading.sources) == 1
            frame = next((f for f in reversed(self.visits.frames) if f.visit.module is block), None)
            if not single or not (frame is None or _is_same_stream(stream, frame.visit)):
                raise InputError(
                    f"{self.name}, layer {index}: its stream after attention is not one tensor of all its tokens, so "
                    "resid_mid cannot be changed; change resid_pre or resid_post"
                )
            stream.copy_(self.stream_value(index, stream))

        for submodule, side in () if reading is None else reading.sources:
            target = block.get_submodule(submodule)
            if side == "input":
                stack.callback(
                    target.register_forward_pre_hook(
                        lambda _, args, kwargs: write((args, kwargs)), with_kwargs=True
                    ).remove
                )
            else:
                stack.callback(target.register_forward_hook(lambda _, args, output: write(output)).remove)
        return stack

    def hook(self, block: nn.Module, path: str) -> Any:
        """Return the handle of a hook that changes the stream of one block."""

        def upcoming() -> int:
            return self.numbers.first.get((path, self.numbers.calls[path]), self.numbers.count)

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            index = upcoming()
            if index not in self.plan:
                return None
            if args and isinstance(args[0], Tensor):
                return (self.stream_value(index, args[0]), *args[1:]), kwargs
            key = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
            return args, {**kwargs, key: self.stream_value(index, kwargs[key])}

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            index = self.numbers.first.get((path, self.numbers.calls[path] - 1), -1)
            if index not in self.plan:
                return None
            reading = resid_post_reading(module)
            if reading.combine is not None or reading.sources != (("", "output"),):
                raise InputError(
                    f"{self.name}, layer {index}: its stream after the block is not the block's first output"
                )
            if isinstance(output, Tensor):
                return self.stream_value(index, output)
            return type(output)((self.stream_value(index, output[0]), *output[1:]))

        if self.site == "resid_pre":
            return block.register_forward_pre_hook(before, with_kwargs=True)
        return block.register_forward_hook(after)

    def stream_value(self, index: int, stream: Tensor) -> Float[Tensor, "batch token width"]:
        """Return the changed residual stream of a layer."""
        ((_, value),) = self.parts(index, 1, f"{self.name}, layer {index}")
        with self.visits.outside_model():
            new = self.selection.apply(
                value, stream, self.site, lambda of: _donated(of, self.site), f"{self.name}, layer {index}"
            )
        self.changed.add(index)
        return new


def _is_same_stream(stream: Tensor, block: Visit) -> bool:
    """Whether a tensor has the tokens of the block's input, which a copy of some of them has not, and is another."""
    before = first_tensor((block.args, block.kwargs))
    ends = (stream.shape[0], stream.shape[-1])
    same = stream.numel() == before.numel() and ends == (before.shape[0], before.shape[-1])
    return same and address(stream) != address(before)


def _donated(record: LayerRecord, site: str, head: int | None = None, heads: int = 1) -> Tensor:
    """Return a site of another capture's layer; with ``head`` only that of the ``heads`` query heads."""
    operand = getattr(record, site)
    if operand is None:
        raise InputError(f"the donor's {record.title} holds no {site}; capture it with sites=[{site!r}]")
    if head is None:
        return operand
    shared = max(1, heads // operand.shape[1]) if site in ("k", "v") else 1
    if head // shared >= operand.shape[1]:
        raise InputError(
            f"the donor's {record.title} has {operand.shape[1]} heads, and none of number {head}"
        )
    return operand[:, head // shared]


def _weights(call: Call, rows: list[int], q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
    """Return the attention of some heads, of operands of these heads."""
    if call.attn is not None:
        return call.attn[:, rows].to(torch.promote_types(call.attn.dtype, torch.float32))
    mask, scale = call.mask, call.scale
    if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
        mask = mask[:, rows]
    if isinstance(scale, Tensor) and scale.ndim > 2 and scale.shape[-3] > 1:
        scale = scale[..., rows, :, :]
    return attention_weights(q, k, scale, mask)


def _uniform(call: Call, head: int, attn: Tensor) -> Tensor:
    """Return equal weights on the keys that the mask shows; without a mask, on those that get any."""
    mask = call.mask
    if mask is None:
        visible = torch.ones_like(attn, dtype=torch.bool) if call.attn is None else attn > 0
    else:
        visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        visible = visible[(None,) * (4 - visible.ndim)]
        visible = visible[:, head if visible.shape[1] > 1 else 0].expand_as(attn)
    count = visible.sum(-1, keepdim=True)
    return torch.where(count > 0, visible / count.clamp(min=1), attn)  # a row of padding may see no key
