"""``capture_steps``: a model that a loop runs again and again, as denoising does, captured at every step."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from workbench.captures.capturing import Capture, Placed, capture, check_sites
from workbench.captures.layer_records import DEFAULT_SITES
from workbench.captures.thread_guard import CAPTURING, in_this_thread
from workbench.core.errors import InputError
from workbench.core.options import Numbers, checked, parse_numbers

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass
class Steps:
    """Captures of a model at every step of a loop: ``steps[3]`` is the capture of step 3.

    ``numbers`` are those of the steps that were kept, ``times`` the time that the model was given at each (None where
    it was given none), ``count`` how often it ran, ``result`` what the loop returned.
    """

    captures: list[Capture] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    count: int = 0
    result: Any = None

    def __len__(self) -> int:
        return len(self.captures)

    def __iter__(self) -> Iterator[Capture]:
        return iter(self.captures)

    def __getitem__(self, step: int) -> Capture:
        if step not in self.numbers:
            raise InputError(
                f"step {step} was not kept; kept are {', '.join(map(str, self.numbers)) or 'none'}"
            )
        return self.captures[self.numbers.index(step)]


@checked
def capture_steps(
    model: Any,
    run: Callable[[], Any],
    *,
    steps: Numbers = None,
    layers: Numbers = None,
    sites: str | Iterable[str] = DEFAULT_SITES,
    check: bool = True,
    each: Callable[[int, Capture], None] | None = None,
) -> Steps:
    """Call ``run``, and capture ``model`` each time it runs meanwhile.

        steps = capture_steps(pipeline.transformer, lambda: pipeline("a cat", num_inference_steps=8), layers="0,-1")
        steps[7][0].attn  # (batch, head, query, key) at the last step

    Every forward pass is a step, counted from 0: a pipeline that runs its model twice for a time, with and without the
    prompt, makes two steps of it. The output of the model is the same as without a capture.

    model: the module that the loop runs, the ``transformer`` or ``unet`` of a pipeline of diffusers.
    run: a function without arguments; its result is that of the steps.
    steps: which steps to keep: None for all, numbers from 0 up, or "0,3-5".
    layers, sites, check: as in `capture`.
    each: gets the number and capture of every step kept; they are then not stored.

    Raises InputError where ``run`` never runs the model, and what `capture` and ``run`` raise.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model must be the torch.nn.Module that the loop runs (pipeline.transformer, pipeline.unet), not "
            f"{type(model).__name__}"
        )
    chosen = parse_numbers("step", steps)
    if chosen is not None and min(chosen) < 0:
        raise InputError(
            f"steps are counted from 0 as they come, and step {min(chosen)} cannot be known before the end"
        )
    sites, kept = check_sites(sites), Steps()
    signature = inspect.signature(type(model).forward)
    before = vars(model).get("forward")  # of accelerate's hooks, say

    def watched(*args: Any, **kwargs: Any) -> Any:
        number = kept.count
        kept.count += 1
        with _unwatched(model, before):
            if chosen is not None and number not in chosen:
                return model(*args, **kwargs)
            arguments = _named(signature, args, kwargs)
            captured = capture(model, arguments, layers=layers, sites=sites, check=check)
        result, captured.result = (
            captured.result,
            None,
        )  # the loop's own, which may go on working on it in place
        if each is not None:
            each(number, captured)
        else:
            kept.captures.append(captured)
        kept.numbers.append(number)
        kept.times.append(_time(arguments))
        return result

    with CAPTURING:
        vars(model)["forward"] = in_this_thread(watched, model.forward)
        try:
            kept.result = run()
        finally:
            _put_back(model, before)
    if not kept.count:
        raise InputError(
            f"run() never ran the {type(model).__name__}; give the module itself that the loop calls, such as "
            "pipeline.transformer or pipeline.unet"
        )
    return kept


@contextmanager
def _unwatched(model: nn.Module, before: Any) -> Generator[None]:
    """The model as it is inside its own forward pass: hooks around it run once, outside."""
    watched = vars(model)["forward"]
    hooks = {name: getattr(model, name) for name in _HOOKS}
    for name in _HOOKS:
        setattr(model, name, OrderedDict())
    _put_back(model, before)
    try:
        yield
    finally:
        for name, originals in hooks.items():
            setattr(model, name, originals)
        vars(model)["forward"] = watched


def _put_back(model: nn.Module, before: Any) -> None:
    if before is None:
        vars(model).pop("forward", None)
    else:
        vars(model)["forward"] = before


def _named(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Placed:
    """The arguments of a call by their names."""
    bound = signature.bind(None, *args, **kwargs).arguments
    named: dict[str, Any] = {}
    for name, value in list(bound.items())[1:]:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise InputError(
                f"the model takes any number of arguments by position ({name}); call it by names"
            )
        named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return Placed(named)


def _time(arguments: dict[str, Any]) -> float | None:
    """Return the time argument of a denoising model."""
    value = arguments.get("timestep", arguments.get("t"))
    if isinstance(value, Tensor) and value.numel():
        return float(value.flatten()[0])
    return float(value) if isinstance(value, (int, float)) else None
