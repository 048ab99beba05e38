"""Attention written out, ``softmax(scale · q kᵀ + bias) v`` in plain operations, found by following the data.

While the model runs, every tensor computed from a product of two tensors is followed through scaling, adding, masking
and changes of its axes, through a softmax, and into the product with v. At that product, the operands of the
first product are q and k, numbers that multiplied the scores are ``scale``, and added or filled values are
``mask``. Weights that are not softmax(scale · q kᵀ + mask), because of a soft cap, a mixing of heads or weights that
were changed after the softmax, are recorded as the model multiplied them with v.

Nothing is computed from followed tensors until the product with v, and nothing is held once its tensors are freed. A
softmax that arrives in a product with data and cannot be read so is reported as missed.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from workbench.captures.keeper import address
from workbench.captures.layer_records import Call
from workbench.captures.layout import declared_heads
from workbench.captures.recomputation import additive, attention_weights, dense, four_axes
from workbench.core.errors import IncompleteCapture, InputError

_PRODUCTS = {"matmul", "bmm", "mm", "einsum", "baddbmm", "addbmm", "addmm", "linalg_matmul"}
_SOFTMAX = {"softmax", "special_softmax"}
_DROPOUT = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
# What changes the axes and no value, ``get`` being a property such as ``.mT``.
_AXES = {
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis",
    "t", "adjoint", "squeeze", "unsqueeze", "expand", "broadcast_to", "expand_as", "view_as", "reshape_as", "getitem",
    "narrow", "select", "chunk", "split", "tensor_split", "unbind", "index_select", "repeat", "repeat_interleave",
    "tile", "roll", "flip", "get",
}  # fmt: skip
# What changes neither, or the type alone.
_SAME = {
    "contiguous", "clone", "detach", "to", "float", "half", "double", "bfloat16", "type", "type_as", "requires_grad",
    "cpu", "cuda", "alias", "identity", "checkpoint_name",
}  # fmt: skip
# What leaves most scores as they are: followed as such where it left all of them so.
_LIMITS = {"clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum", "max", "min", "nan_to_num"}
_NAMES = {
    "iadd": "add", "radd": "add", "isub": "sub", "subtract": "sub", "imul": "mul", "rmul": "mul", "multiply": "mul",
    "itruediv": "div", "truediv": "div", "divide": "div", "true_divide": "div", "concat": "cat", "concatenate": "cat",
    "imatmul": "matmul", "negative": "neg",
}  # fmt: skip
_BROADCAST = {"add", "sub", "rsub", "mul", "masked_fill", "where"}
_LONGEST = 64


class Follower(Protocol):
    """An observer of written-out attention."""

    def wants(self, module: nn.Module | None) -> bool: ...
    def shares_map(self, shape: tuple[int, ...], dtype: torch.dtype, formed: bool) -> bool: ...
    def seen(self, call: Call, module: nn.Module | None) -> None: ...
    def skip(self, module: nn.Module | None) -> None: ...
    def missed(self, reason: str, of_scores: bool = True) -> None:
        """A softmax was multiplied with data that no record says; whether it was one of scores, of a product."""
        ...

    def owns(self, tensor: Tensor) -> bool:
        """Return whether this is a parameter or buffer of the model, or a view of such a tensor."""
        ...

    @property
    def busy(self) -> bool:
        """Whether what runs now is no part of the model's pass."""
        ...

    @property
    def writes(self) -> bool:
        """Whether it writes into the outputs of calls."""
        ...

    def expects(self) -> bool:
        """Whether the next attention will probably be handed over, and is then read at once."""
        ...

    def module_and_input(self) -> tuple[nn.Module, Any] | None:
        """The innermost module and its first input; None where an adapter speaks for it and wants no calls."""
        ...


class _Unreadable(Exception):
    """Weights that are a softmax of unknown scores."""


class _NotOverKeys(Exception):
    """Weights that are summed over another axis than that of their softmax."""


# Products of matrices -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Product:
    """A product of two tensors, with a label for each of their axes and those of the result.

    The result is ``factor`` times the product plus ``added``.
    """

    left: Tensor
    right: Tensor
    left_labels: tuple[Any, ...]
    right_labels: tuple[Any, ...]
    labels: tuple[Any, ...]
    factor: float = 1.0
    added: Tensor | None = None

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Product | None:
        """Return the product of a call of a function of ``_PRODUCTS``; None where it is no product of two tensors."""
        try:
            if name == "einsum":
                return cls._einsum(*args)
            if name not in ("baddbmm", "addbmm", "addmm"):
                other = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("mat2"))
                return cls._matmul(args[0], other)
            first, left, right = (
                *args,
                *(kwargs[key] for key in ("batch1", "batch2", "mat1", "mat2") if key in kwargs),
            )
            beta = kwargs.get("beta", 1)
            product = cls._matmul(left, right, summed=name == "addbmm")
            if product is not None:
                product.factor = kwargs.get("alpha", 1)
                product.added = None if beta == 0 else first if beta == 1 else first * beta
            return product
        except (IndexError, KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _matmul(cls, left: Tensor, right: Tensor, summed: bool = False) -> Product | None:
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)) or min(left.ndim, right.ndim) < 2:
            return None
        lead = tuple(range(max(left.ndim, right.ndim) - 2, 0, -1))
        return cls(
            left,
            right,
            (*lead[len(lead) + 2 - left.ndim :], "n", "d"),
            (*lead[len(lead) + 2 - right.ndim :], "d", "m"),
            ("n", "m") if summed else (*lead, "n", "m"),
        )

    @classmethod
    def _einsum(cls, equation: str, *operands: Any) -> Product | None:
        left, right = operands[0] if len(operands) == 1 else operands
        terms, arrow, result = equation.replace(" ", "").partition("->")
        first, second = terms.split(",")
        if not arrow:
            return None

        def labels(term: str, ndim: int) -> tuple[Any, ...]:
            before, dots, after = term.partition("...")
            count = ndim - len(before) - len(after) if dots else 0
            return (*before, *range(count, 0, -1), *after)

        most = max(left.ndim - len(first.replace("...", "")), right.ndim - len(second.replace("...", "")))
        out = labels(result, len(result.replace("...", "")) + most if "..." in result else len(result))
        product = cls(left, right, labels(first, left.ndim), labels(second, right.ndim), out)
        return product if product.is_pair() else None

    def is_pair(self) -> bool:
        """Whether each label stands once in a tensor, and none in one operand alone and not in the result."""
        sides = self.left_labels, self.right_labels, self.labels
        counted = {label: sum(label in side for side in sides) for side in sides for label in side}
        return min(counted.values()) > 1 and all(len(set(side)) == len(side) for side in sides)

    def roles(self, of_right: bool, packed: bool) -> tuple[list[Any], ...]:
        """The labels that lead, of the rows, of the columns, and of summed axes, seen from one operand.

        An operand may have several axes that the other lacks: the last of them is its row, the others lead, since
        heads may share keys; with ``packed`` all of them together are its row.
        """
        labels, other_labels = self.left_labels, self.right_labels
        if of_right:
            labels, other_labels = other_labels, labels
        distinct = [label for label in self.labels if label in labels and label not in other_labels]
        rows = distinct if packed else distinct[-1:]
        columns = [label for label in self.labels if label in other_labels and label not in labels]
        lead = [label for label in self.labels if label not in rows and label not in columns]
        return (
            lead,
            rows,
            columns,
            [label for label in labels if label in other_labels and label not in self.labels],
        )


def _arrange(x: Tensor, labels: Sequence[Any], lead: Sequence[Any], *groups: Sequence[Any]) -> Tensor:
    """The tensor with its leading axes, then one axis for each group of labels; missing axes have size 1."""
    order = [*lead, *itertools.chain(*groups)]
    x = x.permute([labels.index(label) for label in order if label in labels])
    for position, label in enumerate(order):
        if label not in labels:
            x = x.unsqueeze(position)
    ends = [len(lead), *itertools.accumulate(map(len, groups), initial=len(lead))][1:]
    sizes = [math.prod(x.shape[start:end]) for start, end in itertools.pairwise(ends)]
    shape = [*x.shape[: len(lead)], *sizes]
    return x if list(x.shape) == shape else x.reshape(shape)


def _spread(labels: Sequence[Any], shape: Sequence[int], group: Sequence[Any]) -> Tensor:
    """Return a tensor of this shape whose entries are their index along the axes of ``group``, flattened."""
    sizes = [shape[labels.index(label)] for label in group]
    numbers = torch.arange(math.prod(sizes)).reshape(sizes)
    return _arrange(numbers, list(group), labels).expand(shape)


# What is followed -----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Trace:
    """How a tensor came of a product, or of a softmax of something else: one step, and the trace before it."""

    shape: torch.Size
    serial: int
    product: Product | None = None
    before: Trace | None = None
    step: Callable[[Reading], None] | None = None
    tensors: tuple[Tensor, ...] = ()
    versions: tuple[int, ...] = ()
    softmax: Trace | None = None
    """The trace of the softmax, if any."""
    over_last: bool = False
    plain: bool = True
    length: int = 0
    spent: bool = False

    def steps(self) -> list[Trace]:
        """From the product to here."""
        traces: list[Trace] = [self]
        while (before := traces[-1].before) is not None:
            traces.append(before)
        return traces[::-1]

    def changed(self) -> bool:
        """Whether a tensor that this step needs was overwritten since."""
        return tuple(map(_version, self.tensors)) != self.versions

    def release(self) -> None:
        """Let go of everything from the softmax on: these weights are accounted for."""
        for trace in self.steps():
            if trace.softmax is not None:
                trace.spent, trace.before, trace.step, trace.tensors, trace.versions = (
                    True,
                    None,
                    None,
                    (),
                    (),
                )


@dataclass(eq=False)
class Reading:
    """Scale, bias and places of the weights, read by repeating their steps; ``shape`` is that of the tensor there.

    ``lead``, ``row`` and ``column`` give for each place of the tensor where in the product it stands, ``bias`` and
    ``scale`` broadcast against it. With ``compute`` off only the places are followed.
    """

    shape: torch.Size
    lead: Tensor
    row: Tensor
    column: Tensor
    dtype: torch.dtype
    compute: bool
    located: bool = True
    scale: Any = 1.0
    bias: Tensor | None = None
    exact: bool = True
    filled: bool = False
    weighted: bool = False
    swapped: bool = False
    dropout: float = 0.0
    undropped: Tensor | None = None

    def axes(self, function: Callable[[Tensor], Tensor]) -> None:
        """Change the axes of all tensors of the reading."""
        before = self.shape

        def change(x: Tensor) -> Tensor:
            return function(x.expand(before))

        self.lead, self.row, self.column = (change(places) for places in (self.lead, self.row, self.column))
        self.shape = self.lead.shape
        if self.bias is not None:
            self.bias = change(self.bias)
        if isinstance(self.scale, Tensor) and self.scale.ndim:
            self.scale = change(self.scale)
        if self.undropped is not None:
            self.undropped = change(self.undropped)

    def add(self, other: Any, factor: float = 1.0) -> None:
        """Scores to which something is added."""
        if not self._goes_on() or not isinstance(other, Tensor) or self._same_for_all_keys(other):
            return
        # A bool is a number here: true adds 1.
        other = other.to(self.dtype) * factor if other.dtype == torch.bool or factor != 1 else other
        self.bias = other if self.bias is None else additive(self.bias, self.dtype) + other

    def subtract_from(self, other: Any) -> None:
        """Scores that are subtracted from something."""
        self.multiply(-1.0)
        self.add(other)

    def multiply(self, other: Any, inverse: bool = False) -> None:
        """Scores that are multiplied by something, or divided by it."""
        if isinstance(other, Tensor) and other.numel() == 1:
            other = other.reshape(())
        elif isinstance(other, Tensor) and not self._same_within_heads(other):
            # Zeros where something very small is added afterwards (GPT): whether that is a mask, the weights tell.
            self.exact &= not self.compute or bool(((other == 0) | (other == 1)).all())
            self.filled = True
            other = 1.0
        if not self._goes_on():
            return
        self.scale = self.scale / other if inverse else self.scale * other
        if self.bias is not None and not (
            self.bias.dtype == torch.bool and not isinstance(other, Tensor) and other > 0
        ):
            bias = additive(self.bias, self.dtype)
            self.bias = bias / other if inverse else bias * other

    def fill(self, places: Tensor, value: Any) -> None:
        """Scores that are replaced by a value where ``places`` are true."""
        if isinstance(value, Tensor) and value.numel() > 1:
            self.exact = False
        if not self._goes_on():
            return
        number = value.item() if isinstance(value, Tensor) else value
        if number == -math.inf and (self.bias is None or self.bias.dtype == torch.bool):
            allowed = places.logical_not()
            self.bias = allowed if self.bias is None else self.bias & allowed
            return
        self.filled |= number != -math.inf
        zero = torch.zeros((), device=places.device, dtype=self.dtype)
        self.bias = torch.where(
            places, number, zero if self.bias is None else additive(self.bias, self.dtype)
        )

    def hide(self, places: Tensor) -> None:
        """Weights that are set to 0: whether they are those of keys that were hidden before, the weights tell."""
        if not self.compute or not self.exact:
            return
        if self.bias is None or self.bias.dtype == torch.bool:
            allowed = places.logical_not()
            self.bias = allowed if self.bias is None else self.bias & allowed
        else:
            self.bias = self.bias.masked_fill(places, -math.inf)
        self.filled = True

    def _goes_on(self) -> bool:
        """Whether scale and bias are still worth computing; changes of the weights end that."""
        self.exact &= not self.weighted
        return self.compute and self.exact

    def _same_for_all_keys(self, other: Tensor) -> bool:
        """Return whether a term is the same for all keys of a query, and changes no weight."""
        return all(
            axis < -other.ndim or other.shape[axis] == 1
            for axis in range(-len(self.shape), 0)
            if _varies(self.column, axis)
        )

    def _same_within_heads(self, other: Tensor) -> bool:
        return all(
            axis < -other.ndim or other.shape[axis] == 1
            for axis in range(-len(self.shape), 0)
            if _varies(self.row, axis) or _varies(self.column, axis)
        )

    def replace(self) -> None:
        """Something else was done to the scores, or to the weights."""
        self.exact = False

    def soften(self, axis: int) -> None:
        """A softmax along an axis, which is that of the keys from now on."""
        self.weighted = True
        if not self.located:
            self.column = _spread(range(len(self.shape)), self.shape, [axis])
        elif _varies(self.row, axis) and not _varies(self.column, axis):
            self.row, self.column, self.swapped = self.column, self.row, True

    def drop(self, p: float, weights: Tensor) -> None:
        """Dropout of the weights while the model trains."""
        if not self.weighted or self.undropped is not None:
            self.exact = False
        else:
            self.dropout, self.undropped = p, weights

    def combine(self) -> None:
        """Refuse weights that combine two softmaxes."""
        raise _Unreadable("two softmaxes are combined in its weights")


def _varies(places: Tensor, axis: int) -> bool:
    if places.shape[axis] == 1 or places.stride(axis) == 0:
        return False
    places = dense(places)
    return not bool((places == places.narrow(axis, 0, 1)).all())


def _counts(places: Tensor) -> bool:
    """Whether they are 0, 1, 2 and so on."""
    return torch.equal(places.flatten(), torch.arange(places.numel()))


def _dropout(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[float, bool]:
    """The rate of a call of dropout, and whether it is on."""
    arguments = {**dict(zip(("input", "p", "training"), args, strict=False)), **kwargs}
    return arguments.get("p", 0.5), arguments.get("training", arguments.get("train", True))


def refuse_vmap(tensor: Tensor) -> None:
    """Raise InputError for one of the tensors that stand for a whole batch inside ``torch.vmap``."""
    if torch._C._functorch.is_batchedtensor(tensor):
        raise InputError(
            "attention inside torch.vmap cannot be captured, since its tensors have no values there; capture the model "
            "that is mapped, on a batch"
        )


def _unchanged(result: Tensor, tensor: Tensor) -> bool:
    """Return whether a step left all values unchanged; False for a step that overwrites its input."""
    return result is not tensor and result.dtype == tensor.dtype and torch.equal(result, tensor)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


# Following ------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _name_of(func: Callable[..., Any]) -> str:
    """Return one name of a function of torch, for all its aliases."""
    name = getattr(func, "__name__", "").strip("_")
    return _NAMES.get(name, name)


class WrittenOut:
    """Follows the data of one run of a model, function by function, and reports the attention that it finds."""

    def __init__(self, observer: Follower) -> None:
        self.observer = observer
        self.traces: dict[int, tuple[weakref.ref[Tensor], int, Trace]] = {}
        self.merged: dict[int, tuple[weakref.ref[Tensor], tuple[int, int], bool]] = {}
        self.serials = itertools.count()

    def follow(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, and note what its result came of."""
        name = _name_of(func)
        if name in _PRODUCTS:
            return self._multiply(name, func, args, kwargs)
        if name in _SOFTMAX:
            return self._soften(func, args, kwargs)
        if name in ("cat", "view", "reshape", "flatten"):
            result = func(*args, **kwargs)
            self._note_merged(name, args, kwargs, result)
            if self.traces:
                self._step(name, func, args, kwargs, self._traced(args, kwargs), result)
            return result
        if not self.traces:
            return func(*args, **kwargs)
        traced = self._traced(args, kwargs)
        if not traced:
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if name == "setitem":  # overwrites its input, and returns nothing
            trace = traced[0][1] if args[0] is traced[0][0] else None
            if trace is not None:
                self._continue(args[0], trace, Reading.replace, plain=False)
            return result
        self._step(name, func, args, kwargs, traced, result)
        return result

    # The table of traces

    def find(self, value: Any) -> Trace | None:
        if not isinstance(value, Tensor):
            return None
        entry = self.traces.get(id(value))
        if entry is None or entry[0]() is not value:
            return None
        _, version, trace = entry
        overwritten = version != _version(value)  # through another view of it
        if overwritten or (trace.softmax or trace).spent:
            del self.traces[id(value)]
            return None
        return trace

    def note(self, tensor: Tensor, trace: Trace) -> None:
        key = id(tensor)

        def forget(reference: weakref.ref[Tensor], traces: Any = self.traces) -> None:
            if key in traces and traces[key][0] is reference:
                del traces[key]

        self.traces[key] = (weakref.ref(tensor, forget), _version(tensor), trace)

    def _traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[Tensor, Trace]]:
        traced, traces = [], self.traces  # of most functions no argument is followed, and each is asked
        for value in (*args, *kwargs.values()) if kwargs else args:
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if id(item) in traces and (trace := self.find(item)) is not None:
                    traced.append((item, trace))
        return traced

    # Steps

    def _multiply(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = func(*args, **kwargs)
        product = Product.of(name, args, kwargs)
        if product is None or not isinstance(result, Tensor) or not result.numel():
            return result
        if torch._C._functorch.is_batchedtensor(result):
            return result
        left, right = self.find(product.left), self.find(product.right)
        for of_right, trace in ((False, left), (True, right)):
            if trace is None or trace.softmax is None:
                continue
            values = product.left if of_right else product.right
            if self.observer.owns(values):
                if result.shape == trace.shape:  # heads are mixed by weights of the model
                    self._continue(result, trace, Reading.replace, plain=False)
                return result
            if self._arrive(product, of_right, trace, result, values):
                return result
        scores = left or right
        if scores is not None and self.observer.owns(product.right if left else product.left):
            if result.shape == scores.shape:
                self._continue(result, scores, Reading.replace, plain=False)
            return result
        if self.observer.owns(product.right):  # a linear layer
            return result
        operands = (product.left, product.right) + (() if product.added is None else (product.added,))
        versions = tuple(map(_version, operands))
        self.note(
            result, Trace(result.shape, next(self.serials), product, tensors=operands, versions=versions)
        )
        return result

    def _soften(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(scores, Tensor) or scores.ndim < 2:
            return result
        refuse_vmap(scores)
        axis = args[1] if len(args) > 1 else kwargs.get("dim")
        axis = (0 if scores.ndim == 3 else 1) if axis is None else axis % scores.ndim
        trace = self.find(scores)
        if trace is None or trace.softmax is not None:
            trace = Trace(scores.shape, next(self.serials))
        softened = self._next(result.shape, trace, lambda reading: reading.soften(axis))
        softened.softmax, softened.over_last = softened, axis == scores.ndim - 1
        self.note(result, softened)
        return result

    def _next(
        self,
        shape: torch.Size,
        before: Trace,
        step: Callable[[Reading], None] | None,
        *values: Any,
        plain: bool = True,
    ) -> Trace:
        tensors = tuple(value for value in values if isinstance(value, Tensor))
        return Trace(
            shape, before.serial, before=before, step=step, tensors=tensors, versions=tuple(map(_version, tensors)),
            softmax=before.softmax, over_last=before.over_last, plain=before.plain and plain, length=before.length + 1,
        )  # fmt: skip

    def _continue(
        self,
        result: Any,
        before: Trace,
        step: Callable[[Reading], None] | None,
        *values: Any,
        plain: bool = True,
    ) -> None:
        if isinstance(result, Tensor) and before.length < _LONGEST:
            self.note(result, self._next(result.shape, before, step, *values, plain=plain))

    def _step(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        traced: list[tuple[Tensor, Trace]],
        result: Any,
    ) -> None:
        if not traced:
            return
        if isinstance(result, (list, tuple)) and name in _AXES:
            for number, part in enumerate(result):
                self._axes(part, traced[0], func, args, kwargs, number)
            return
        if not isinstance(result, Tensor) or not result.numel() or not result.is_floating_point():
            return
        tensor, trace = max(
            traced,
            key=lambda pair: (
                pair[1].shape == result.shape,
                pair[1].softmax is not None,
                pair[1].plain,
                -pair[1].serial,
            ),
        )
        if name in ("cat", "pad", "stack"):
            several = len({id(t.steps()[0]) for _, t in traced}) > 1
            self._widen(name, result, tensor, trace, func, args, kwargs, several)
        elif name in _AXES:
            self._axes(result, (tensor, trace), func, args, kwargs)
        elif result.shape == tensor.shape:
            self._value(name, result, tensor, trace, args, kwargs, traced)
        elif name in _BROADCAST and result.shape[-2:] == tensor.shape[-2:]:
            shape = result.shape
            widened = self._next(shape, trace, lambda reading: reading.axes(lambda x: x.expand(shape)))
            self._value(name, result, tensor, widened, args, kwargs, traced)

    def _axes(
        self,
        result: Any,
        of: tuple[Tensor, Trace],
        func: Callable[..., Any],
        args: Any,
        kwargs: Any,
        part: Any = None,
    ) -> None:
        tensor, trace = of
        position = next((i for i, value in enumerate(args) if value is tensor), None)
        if position is None or not isinstance(result, Tensor):
            return

        shape = result.shape

        def change(x: Tensor) -> Tensor:
            arguments = (*args[:position], x, *args[position + 1 :])
            try:
                changed = func(*arguments, **kwargs)
            except RuntimeError:  # a view of an expanded tensor
                if getattr(func, "__name__", "") != "view":
                    raise
                changed = x.reshape(shape)
            return changed if part is None else changed[part]

        # None marks the tensor's position, which must not keep it alive
        args = (*args[:position], None, *args[position + 1 :])
        self._continue(result, trace, lambda reading: reading.axes(change), *args)

    def _widen(
        self,
        name: str,
        result: Tensor,
        tensor: Tensor,
        trace: Trace,
        func: Callable[..., Any],
        args: Any,
        kwargs: Any,
        several: bool,
    ) -> None:
        """Further scores beside these, such as those of attention sinks."""
        if name == "pad":
            sides = args[1] if len(args) > 1 else kwargs["pad"]

            def change(x: Tensor) -> Tensor:
                return func(x, sides, value=-1)
        else:
            parts = args[0] if args else kwargs["tensors"]
            shapes = [None if value is tensor else value.shape for value in parts]
            rest = args[1:]
            options = {key: value for key, value in kwargs.items() if key != "tensors"}

            def change(x: Tensor) -> Tensor:
                return func([x if s is None else x.new_full(s, -1) for s in shapes], *rest, **options)

        def step(reading: Reading) -> None:
            if several:
                raise _Unreadable("its scores are joined of several products")
            reading.bias, reading.scale, reading.undropped, reading.exact = None, 1.0, None, False
            reading.axes(change)

        self._continue(result, trace, step, plain=False)

    def _value(
        self, name: str, result: Tensor, tensor: Tensor, trace: Trace, args: Any, kwargs: Any, traced: Any
    ) -> None:
        """A step that changes values and leaves the axes."""
        first = args[0] if args else kwargs.get("input")
        second = args[1] if len(args) > 1 else kwargs.get("other")
        is_first = first is tensor
        other = second if is_first else first
        alpha = kwargs.get("alpha", 1)

        def go_on(step: Callable[[Reading], None] | None, plain: bool = True, value: Any = None) -> None:
            self._continue(result, trace, step, value, plain=plain)

        for others, _ in traced:
            if others is not tensor:  # it is a bias now, and followed no further
                self.traces.pop(id(others), None)
        if trace.softmax and name not in _SAME | _DROPOUT | _LIMITS:
            if _unchanged(result, tensor):
                go_on(None)
                return
            if (
                name == "masked_fill"
                and is_first
                and (args[2] if len(args) > 2 else kwargs.get("value")) == 0
            ):
                places = args[1] if len(args) > 1 else kwargs["mask"]
                go_on(lambda reading: reading.hide(places), value=places)
                return
            products = {id(t.steps()[0].product) for _, t in traced if t.softmax and t.steps()[0].product}
            go_on(Reading.combine if len(products) > 1 else Reading.replace, plain=False)
        elif name in _SAME:
            go_on(None)
        elif name == "add":
            go_on(lambda reading: reading.add(other, alpha if is_first else 1.0), value=other)
        elif (name, is_first) in (("sub", True), ("rsub", False)):
            go_on(lambda reading: reading.add(other, -alpha), value=other)
        elif name in ("sub", "rsub"):
            go_on(lambda reading: reading.subtract_from(other), value=other)
        elif name == "neg":
            go_on(lambda reading: reading.multiply(-1.0))
        elif name == "mul":
            go_on(lambda reading: reading.multiply(other), value=other)
        elif name == "div" and is_first and "rounding_mode" not in kwargs:
            go_on(lambda reading: reading.multiply(other, inverse=True), value=other)
        elif name == "masked_fill" and is_first:
            arguments = {**dict(zip(("mask", "value"), args[1:], strict=False)), **kwargs}
            go_on(
                lambda reading: reading.fill(arguments["mask"], arguments["value"]), value=arguments["mask"]
            )
        elif name == "where" and len(args) == 3:
            method = isinstance(first, Tensor) and first.dtype != torch.bool  # scores.where(places, other)
            places, kept, instead = (second, first, args[2]) if method else args
            if kept is tensor:
                go_on(lambda reading: reading.fill(places.logical_not(), instead), value=places)
            else:
                go_on(lambda reading: reading.fill(places, kept), value=places)
        elif name in _DROPOUT:
            p, on = _dropout(args, kwargs)
            if on and p > 0:
                go_on(lambda reading: reading.drop(p, tensor), value=tensor)
            else:
                go_on(None)
        elif name in _LIMITS and _unchanged(result, tensor):
            go_on(None)
        else:
            go_on(Reading.replace, plain=False)

    def _note_merged(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Remember what a first axis was put together from: batch and heads, or heads and batch."""
        if not isinstance(result, Tensor) or not (
            result.ndim == 3 or (result.ndim == 4 and result.shape[1] == 1)
        ):
            return
        if name == "cat":
            parts = args[0] if args else kwargs.get("tensors")
            along = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            if along != 0 or len(parts) < 2:
                return
            sizes = (len(parts), parts[0].shape[0])
        else:
            source = args[0]
            if not isinstance(source, Tensor) or source.ndim != 4:
                return
            sizes = (source.shape[0], source.shape[1])
        if sizes[0] * sizes[1] != result.shape[0]:
            return
        key, merged = id(result), self.merged
        merged[key] = (weakref.ref(result, lambda _: merged.pop(key, None)), sizes, name == "cat")

    # Arriving

    def _arrive(self, product: Product, of_right: bool, trace: Trace, result: Tensor, values: Tensor) -> bool:
        """Weights are multiplied with values: report the attention. False where it is not their keys they sum over."""
        location = self.observer.module_and_input()
        if location is None:
            trace.release()
            return True
        try:
            arrival = self._read(product, of_right, trace, result, self.observer.expects())
            if (weights := self.find(values)) is not None and weights.softmax is not None:
                raise _Unreadable("its weights are multiplied with weights of other attention")
        except _NotOverKeys:
            return False
        except _Unreadable as error:
            of_scores = trace.steps()[0].product is not None
            if trace.over_last or of_scores:
                self.observer.missed(str(error), of_scores)
        else:
            if self.observer.wants(None):
                call = arrival(location)
                if self.observer.writes and address(call.head_out) != address(result):
                    raise IncompleteCapture(
                        "attention that is written out puts its heads together in a way that cannot be changed"
                    )
                self.observer.seen(call, None)
            else:
                self.observer.skip(None)
        trace.release()
        return True

    def _read(
        self, product: Product, of_right: bool, trace: Trace, result: Tensor, wanted: bool
    ) -> Callable[[tuple[nn.Module, Any]], Call]:
        steps = trace.steps()
        if any(step.changed() for step in steps):
            raise _Unreadable(
                "its operands are overwritten before its weights are multiplied with the values"
            )
        failure: _Unreadable | None = None
        for packed in (False, True):
            try:
                arrival = _Arrival(product, of_right, packed, steps, result, compute=wanted)
            except _Unreadable as error:
                failure = failure or error
            else:
                if wanted:
                    return lambda location: arrival.call(*location, self.merged, self.observer)
                return lambda location: _Arrival(product, of_right, packed, steps, result).call(
                    *location, self.merged, self.observer
                )
        assert failure is not None
        raise failure


class _Arrival:
    """Weights that are multiplied with values, and their reading; with ``compute`` off only their axes.

    Raises _Unreadable where they are no weights of the keys of one product, saying why, and _NotOverKeys.
    """

    def __init__(
        self,
        product: Product,
        of_right: bool,
        packed: bool,
        steps: list[Trace],
        result: Tensor,
        compute: bool = True,
    ) -> None:
        self.steps, self.result, self.product = steps, result, product
        self.scores, shape = steps[0].product, steps[0].shape
        if self.scores is None:
            nothing = torch.zeros((), dtype=torch.long).expand(shape)
            reading = Reading(shape, nothing, nothing, nothing, torch.float32, compute=False, located=False)
        else:
            self.of_scores = self.scores.roles(False, packed)
            places = (_spread(self.scores.labels, shape, group) for group in self.of_scores[:3])
            dtype = torch.promote_types(self.scores.left.dtype, torch.float32)
            reading = Reading(shape, *places, dtype=dtype, compute=compute, scale=self.scores.factor)
            if self.scores.added is not None:
                reading.add(self.scores.added)
        try:
            for step in steps:
                if step.step is not None:
                    step.step(reading)
        except (RuntimeError, IndexError, TypeError) as error:
            raise _Unreadable("the axes of its scores cannot be followed") from error
        self.reading = reading
        self.weights, self.values = product.left, product.right
        self.labels, self.of_values = product.left_labels, product.right_labels
        if of_right:
            self.weights, self.values = self.values, self.weights
            self.labels, self.of_values = self.of_values, self.labels
        self.lead, self.rows, self.columns, self.keys = product.roles(of_right, packed)
        self.places = [self.arranged(x) for x in (reading.lead, reading.row, reading.column)]
        self._check()

    def arranged(self, x: Tensor) -> Tensor:
        """(lead …, query, key) of something that lies as the weights do."""
        return _arrange(x.expand(self.weights.shape), self.labels, self.lead, self.rows, self.keys)

    def _check(self) -> None:
        """Whether the weights' axes are inputs and heads, queries and keys, and the softmax was over the keys."""
        lead, row, column = self.places
        if lead.shape[-1] > 1 and not _varies(column, -1):
            raise _NotOverKeys
        if self.scores is None:
            raise _Unreadable("its logits are no product of queries and keys")
        others = range(lead.ndim - 2)
        if any(_varies(column, axis) for axis in (*others, -2)):
            raise _Unreadable("the keys differ between its queries, heads or inputs")
        if any(_varies(lead, axis) for axis in (-2, -1)) or any(_varies(row, axis) for axis in (*others, -1)):
            raise _Unreadable("its queries are mixed with heads or inputs")
        first = (0,) * (lead.ndim - 2)
        self.places = [lead[..., 0, 0], row[first][:, 0], column[first][0]]
        if min(int(dense(places).min()) for places in self.places) < 0:
            raise _Unreadable("only some of its weights depend on queries and keys")

    def operand(self, which: str) -> Tensor:
        """Queries or keys, (lead …, token, head_dim), where the weights have them."""
        assert self.scores is not None
        lead, rows, columns, inner = self.of_scores
        left = (which == "q") != self.reading.swapped
        x = (
            _arrange(self.scores.left, self.scores.left_labels, lead, rows, inner)
            if left
            else _arrange(self.scores.right, self.scores.right_labels, lead, columns, inner)
        )
        lead_at, tokens_at = self.places[0], self.places[1 if which == "q" else 2]
        sizes = [self.steps[0].shape[self.scores.labels.index(label)] for label in lead]
        if list(lead_at.shape) != sizes or not _counts(lead_at):
            x = x.expand(*sizes, *x.shape[-2:])
            if _counts(lead_at) and lead_at.numel() == math.prod(sizes):
                x = x.reshape(*lead_at.shape, *x.shape[-2:])
            else:
                x = x.reshape(-1, *x.shape[-2:])[lead_at.to(x.device)]
        if tokens_at.numel() == x.shape[-2] and _counts(tokens_at):
            return x
        return x.index_select(-2, tokens_at.to(x.device))

    def call(
        self, module: nn.Module, module_input: Any, merged: Mapping[int, Any], observer: Follower
    ) -> Call:
        """The attention, its axes (batch, head, token, head_dim)."""
        reading, product = self.reading, self.product
        output = _arrange(self.result, product.labels, self.lead, self.rows, self._value_axes())
        values = _arrange(self.values, self.of_values, self.lead, self.keys, self._value_axes())
        lead = tuple(output.shape[:-2])
        split = self._heads_in_batch(lead, module, module_input, merged)

        def four(x: Tensor) -> Tensor:
            if split is not None:
                x = x.expand(*lead, *x.shape[-2:]).unflatten(0, split[0])
                return x.transpose(0, 1) if split[1] else x
            return four_axes(x, (*lead[:-1], x.shape[-3]) if x.ndim > 3 else lead)

        q, k, v, output = (four(x) for x in (self.operand("q"), self.operand("k"), values, output))
        scale = self._scale(four)
        mask = None if reading.bias is None or not reading.exact else dense(four(self.arranged(reading.bias)))
        weights = four(self.arranged(self.weights if reading.undropped is None else reading.undropped))
        exact = reading.exact
        if exact and reading.filled:
            # A value that means "never" means nothing in a row without another value.
            recomputed = attention_weights(q, k, scale, mask)
            exact = torch.allclose(recomputed.to(weights.dtype), weights, rtol=1e-3, atol=1e-5)
        call = Call(q, k, v, scale, mask, output, attn=None if exact else weights, dropout=reading.dropout)
        if exact and not reading.dropout and observer.shares_map(weights.shape, weights.dtype, True):
            call.used_attn = weights
        if not exact:
            sums = weights.detach().float().sum(dim=-1)
            call.rows_sum_to_one = bool(((sums - 1).abs() < 1e-2).logical_or(sums == 0).all())
        return _over_channels(call) if _attends_to_channels(call, module_input) else call

    def _value_axes(self) -> list[Any]:
        return [
            label for label in self.product.labels if label in self.of_values and label not in self.labels
        ]

    def _scale(self, four: Callable[[Tensor], Tensor]) -> float | Tensor:
        """The factor on the scores, one number or one for each head; any other is left to the weights."""
        scale = self.reading.scale
        if not self.reading.exact:
            return float(scale) if isinstance(scale, (int, float)) else 1.0
        if not isinstance(scale, Tensor):
            return float(scale)
        if not scale.ndim:
            return scale.reshape(1, 1, 1) if scale.requires_grad else float(scale)
        full = dense(four(self.arranged(scale)))
        if any(_varies(full, axis) for axis in (0, 2, 3)):
            self.reading.exact = False
            return 1.0
        return full[0, :, :1, :1]

    def _heads_in_batch(
        self, lead: tuple[int, ...], module: nn.Module, module_input: Any, merged: Mapping[int, Any]
    ) -> tuple[tuple[int, int], bool] | None:
        """Return how the only leading axis is made of inputs and heads; None where it is not."""
        if len(lead) != 1 or self.scores is None:
            return None
        shapes = [tuple(step.shape[:2]) for step in self.steps if len(step.shape) == 4]
        return heads_in_batch(
            lead[0], (self.scores.left, self.scores.right, self.values), shapes, module, module_input, merged
        )


def heads_in_batch(
    count: int,
    operands: Sequence[Tensor],
    shapes: Sequence[tuple[int, ...]],
    module: nn.Module,
    module_input: Any,
    merged: Mapping[int, Any],
) -> tuple[tuple[int, int], bool] | None:
    """Return how an axis of ``count`` is made of inputs and heads, and whether heads come first; None where it is not.

    The scores may have been seen with both axes (``shapes``), or the operands when they were put together (``merged``).
    Otherwise the module declares how many heads it has, and the inputs come first.
    """
    if not isinstance(module_input, Tensor):
        return None
    inputs = module_input.shape[0] if module_input.ndim else 1
    notes = [merged[id(x)] for x in operands if id(x) in merged]
    for sizes in [*shapes, *(note[1] for note in notes)]:
        if math.prod(sizes) == count and 1 not in (sizes[0], count // sizes[0]):
            joined = any(note[1] == sizes and note[2] for note in notes)
            heads_first = joined or (sizes[0] != inputs and sizes[1] == inputs)
            return (sizes[0], count // sizes[0]), heads_first
    heads = declared_heads(module)
    if heads is None or heads == 1 or count % heads or count == inputs:
        return None
    return (count // heads, heads), False


def _attends_to_channels(call: Call, module_input: Any) -> bool:
    """Return whether the axis summed over is that of the module's input tokens, and its queries are the channels."""
    if not isinstance(module_input, Tensor) or module_input.ndim < 3:
        return False
    _, heads, queries, summed = call.q.shape
    sizes = module_input.shape[1:]
    layouts = [(math.prod(sizes[:-1]), sizes[-1])]
    if len(sizes) > 2:
        layouts.append((math.prod(sizes[1:]), sizes[0]))
    return any(
        summed == tokens != queries == call.k.shape[2] and queries * heads == channels
        for tokens, channels in layouts
    )


def _over_channels(call: Call) -> Call:
    """The call with channels that attend to channels, its operands (batch, head, token, head_dim) as any others."""
    if call.mask is not None:
        raise IncompleteCapture("attention among channels with a mask or bias cannot be recorded")
    return replace(
        call, q=call.q.mT, k=call.k.mT, v=call.v.mT, head_out=call.head_out.mT, used_attn=None, kind="channel"
    )
