"""What happens during one captured forward pass: which call is which layer, and what is kept of it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from workbench.captures.layout import (
    after_attention,
    attn_out_reading,
    before_attention,
    block_is_known,
    block_path,
    is_attention,
    is_library_model,
    looks_like_attention,
    must_attend,
    resid_post_reading,
    token_mixers,
)
from workbench.captures.positions import POSITION, Positions
from workbench.captures.records import STREAM, Call, CausalRecord, LayerRecord
from workbench.captures.registry import Reading, Visit, adapter_of, class_path, merged, mixer_of
from workbench.captures.tokens import source_of
from workbench.captures.weights import NonFiniteValues, call_weights, check_call, dense
from workbench.core.errors import IncompleteCapture, InputError
from workbench.core.options import parse_numbers


@dataclass
class _Frame:
    """A visit in progress: the calls made inside, and what passed through the places that are read."""

    visit: Visit
    records: list[tuple[LayerRecord, dict[str, Reading]]] = field(default_factory=list)
    passed: dict[tuple[str, str], Any] = field(default_factory=dict)
    attends: bool = False
    """Whether attention was seen inside, read or not."""


class Overwritten(Exception):
    """The model has overwritten tensors of a layer that is about to be handed over."""


@dataclass(eq=False)
class Recorder:
    """Turns what the routes see into records, as the model runs.

    With ``each``, a record is handed to it, with how many tokens there are, and let go as soon as its layer is
    complete; layers whose numbers are in ``handed`` are left out, and those handed over join them.
    """

    modules: dict[str, nn.Module]
    name: str
    keeper: Keeper
    chosen: tuple[int, ...] | None
    sites: tuple[str, ...]
    check: bool
    keep_nonfinite: bool
    each: Callable[[LayerRecord, int | None], None] | None
    handed: set[int]
    map_limit: int | None = None

    result: Any = None
    positions: Positions | None = None
    failure: BaseException | None = None
    notes: list[str] = field(default_factory=list)
    fast_path_off: bool = False
    """Whether torch's fast path would have been taken somewhere, had it not been off."""
    records: list[LayerRecord] = field(default_factory=list)
    count: int = 0
    token_count: int | None = None
    calls: Counter[str] = field(default_factory=Counter)
    entered: set[str] = field(default_factory=set)
    attended: set[str] = field(default_factory=set)
    worked: set[str] = field(default_factory=set)
    """Where something else came out than went in."""
    frames: list[_Frame] = field(default_factory=list)
    blocks: dict[str, str | None] = field(default_factory=dict)
    readings: dict[str, dict[str, Reading]] = field(default_factory=dict)
    busy: bool = False
    """Whether what runs now is no part of the model's pass: an adapter, a check, the function that gets the layers."""
    gaps: dict[str, str] = field(default_factory=dict)
    """Why attention that ran in a module is in no record, by the module's path."""

    def __post_init__(self) -> None:
        self.module = self.modules[""]
        self.paths = {child: path for path, child in self.modules.items()}
        self.mixers = token_mixers(self.module)
        surely = (path for path in self.mixers if (known := mixer_of(type(self.modules[path]))) and known[1])
        self.opaque = frozenset(surely)
        # Layers are only counted by running, so for layer -2 the last two are kept until the end.
        self.last = 0 if self.chosen is None else -min(0, *self.chosen, 0)
        of_modules = (
            m.__dict__[kind].values() for m in self.modules.values() for kind in ("_parameters", "_buffers")
        )
        self.weights = {
            _address(tensor) for tensors in of_modules for tensor in tensors if tensor is not None
        }
        self.weights.discard(0)  # of weights that are elsewhere, and of tensors without elements
        self.reads_stream = not set(STREAM).isdisjoint(self.sites)

    # What the routes report -------------------------------------------------------------------------------

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.busy:
            return
        path = self.paths.get(module, "")
        self.entered.add(path)
        parents = [frame.visit for frame in reversed(self.frames)]
        self.frames.append(_Frame(Visit(module, path, args, kwargs, parents)))

    def leave(self, module: nn.Module, output: Any) -> None:
        # A hook of someone else may have stopped the module before it was entered, and an exception that the
        # model caught may have left visits open.
        if self.busy or not any(frame.visit.module is module for frame in self.frames):
            return
        self.read(module, output)
        if output is not None:  # as it is where an exception is on its way out, and layers are not complete
            self.hand_over()

    def read(self, module: nn.Module, output: Any) -> None:
        while (frame := self.frames.pop()).visit.module is not module:
            pass
        if output is None:
            return
        frame.visit.output = output
        given = {id(tensor) for tensor in tensors_in((frame.visit.args, frame.visit.kwargs))}
        works = not all(id(tensor) in given for tensor in tensors_in(output))
        if works:
            self.worked.add(frame.visit.path)
        if works and frame.visit.path in self.mixers and not frame.attends:
            self.frames.append(frame)
            self.record_mixer(frame.visit)
            self.frames.pop()
        adapter = adapter_of(type(module))
        if adapter is not None:
            self.frames.append(frame)
            self.attended.add(frame.visit.path)
            expected = max(1, len(frame.visit.calls)) if adapter.reads_calls and not adapter.joins else 1
            if any(self.keeps(self.count + offset) for offset in range(expected)):
                with self.apart():
                    calls = adapter.read(frame.visit)
                for call in calls:
                    self.record(call, frame.visit)
            else:
                self.pass_over(frame.visit.path, expected)
            self.frames.pop()
        self.read_residual_stream(frame)

    def wants(self, module: nn.Module | None) -> bool:
        if self.busy or self.in_mixer():
            return False
        self.note_attention()
        frame = self.find(module)
        self.attended.add(frame.visit.path)
        adapted = self.adapted(frame)
        return self.keeps(self.count) if adapted is None else _reads_calls(adapted.visit.module)

    def skip(self, module: nn.Module | None) -> None:
        if self.busy or self.in_mixer():
            return
        frame = self.find(module)
        if self.adapted(frame) is None:
            self.pass_over(frame.visit.path, 1)

    def observes(self, module: nn.Module) -> bool:
        return not self.busy and self.find(module).visit.module is module and self.keeps(self.count)

    def observed(self, module: nn.Module, output: Tensor, inside: dict[str, Any]) -> None:
        self.find(module).visit.attended = output, inside

    def seen(self, call: Call, module: nn.Module | None) -> None:
        frame = self.find(module)
        adapted = self.adapted(frame)
        if adapted is None:
            self.record(call, frame.visit)
            self.hand_over()
            return
        for site in ("q", "k", "v", "head_out"):
            setattr(call, site, self.keeper.keep_briefly(getattr(call, site)))
        adapted.visit.calls.append(call)

    def missed(self, reason: str, of_scores: bool = True) -> None:
        if not of_scores and self.mixers and any(frame.visit.path in self.mixers for frame in self.frames):
            return  # linear attention may well normalise its queries by a softmax
        self.note_attention()
        self.gaps.setdefault(self.frames[-1].visit.path, reason)

    def owns(self, tensor: Tensor) -> bool:
        return _address(tensor) in self.weights

    def note_attention(self) -> None:
        for frame in self.frames if self.mixers else ():
            frame.attends = True

    def in_mixer(self) -> bool:
        """Whether what runs is part of a module that is named and not read, whatever it does."""
        return bool(self.opaque) and any(frame.visit.path in self.opaque for frame in self.frames)

    def miss_fast_path(self) -> None:
        self.fast_path_off = True

    def expects(self) -> bool:
        return self.keeps(self.count)

    def place(self) -> tuple[nn.Module, Any] | None:
        if self.in_mixer():
            return None
        adapted = self.adapted(self.frames[-1])
        if adapted is not None and not _reads_calls(adapted.visit.module):
            return None
        visit = self.frames[-1].visit
        return visit.module, _first_tensor((visit.args, visit.kwargs))

    def find(self, module: nn.Module | None) -> _Frame:
        if module is not None:
            for frame in reversed(self.frames):
                if frame.visit.module is module:
                    return frame
        return self.frames[-1]

    def adapted(self, frame: _Frame) -> _Frame | None:
        """The innermost frame at or around this one whose module has an adapter."""
        place = self.frames.index(frame)
        return next((f for f in reversed(self.frames[: place + 1]) if adapter_of(type(f.visit.module))), None)

    @contextmanager
    def apart(self) -> Generator[None]:
        """What runs in this block is no part of the model's pass."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    # Records ----------------------------------------------------------------------------------------------

    def keeps(self, index: int) -> bool:
        return self.chosen is None or index in self.chosen or self.last > 0

    def pass_over(self, path: str, calls: int) -> None:
        self.count += calls
        self.calls[path] += calls

    def record(self, call: Call, visit: Visit) -> None:
        index = self.count
        number = self.calls[visit.path]
        self.pass_over(visit.path, 1)
        if self.token_count is None and call.kind != "channel" and call.origin is None:
            self.token_count = call.head_out.shape[2]
        if not self.keeps(index):
            return
        extra = call.extra | self.inner_sites(visit)
        with self.apart():
            source = source_of(visit, call)
        causal = call.causal and self.too_large(call)
        record = (CausalRecord if causal else LayerRecord)(
            index, visit.path, number, call.kind, call.rows_sum_to_one, source, _counts(call),
            extra=dict(extra), origin=call.origin,
        )  # fmt: skip
        name = f"{self.name}, layer {index} ({visit.path or type(visit.module).__name__})"
        with self.apart():
            formed = "attn" in self.sites and not self.too_large(call)
            try:
                attn = call_weights(call) if formed else None
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
            if attn is not None:
                attn = attn.to(torch.promote_types(attn.dtype, torch.float32))
            if self.check:
                self.check_call(call, attn, name)
            self.fill(record, call, attn, visit)
        self.add(record, visit)

    def too_large(self, call: Call) -> bool:
        """Whether attention has more entries per input than are to be formed, and its operands give it anyway."""
        if self.map_limit is None or call.kind != "token" or call.attn is not None:
            return False
        return call.q.shape[1] * call.q.shape[2] * call.k.shape[2] > self.map_limit

    def add(self, record: LayerRecord, visit: Visit) -> None:
        self.records.append(record)
        if self.last:
            until = record.index - self.last
            self.records = [r for r in self.records if self.is_chosen(r.index) or r.index > until]
        self.expect_residual_stream(record, visit)

    def record_mixer(self, visit: Visit) -> None:
        """A layer that mixes tokens by something else than attention: named, with what goes into it."""
        index, number = self.count, self.calls[visit.path]
        self.attended.add(visit.path)
        self.pass_over(visit.path, 1)
        given = _first_tensor((visit.args, visit.kwargs))
        if self.token_count is None and given is not None and given.ndim == 3:
            self.token_count = given.shape[1]
        if not self.keeps(index):
            return
        mixer = self.mixers[visit.path]
        record = LayerRecord(index, visit.path, number, "none", rows_sum_to_one=False, mixer=mixer)
        if "input" in self.sites and given is not None:
            record.input = self.keeper.keep({"input": given})["input"]
        self.add(record, visit)

    def inner_sites(self, visit: Visit) -> dict[str, Tensor]:
        """What passed through places inside this attention that are sites of their own."""
        passed = next((frame.passed for frame in reversed(self.frames) if frame.visit is visit), {})
        sites = {site: passed.get((name, "input")) for name, site in merged("inner_sites").items()}
        # models give their cache a latent with an axis for heads, of which there is one
        return {
            site: value.squeeze(1) if value.ndim == 4 else value
            for site, value in sites.items()
            if isinstance(value, Tensor)
        }

    def check_call(self, call: Call, attn: Tensor | None, name: str) -> None:
        try:
            with torch.no_grad():
                check_call(call, attn, name)
        except NonFiniteValues as error:
            if not self.keep_nonfinite:
                raise
            if not self.notes:  # NaN spreads: of the layers after the first it says nothing new
                self.notes.append(f"captured without checks: {error}")

    def is_chosen(self, index: int) -> bool:
        return self.chosen is None or index in self.chosen

    def fill(self, record: LayerRecord, call: Call, attn: Tensor | None, visit: Visit) -> None:
        available: dict[str, Any] = {
            "q": call.q, "k": call.k, "v": call.v, "scale": call.scale, "attn": attn, "head_out": call.head_out,
        }  # fmt: skip
        if "input" in self.sites:
            available["input"] = _first_tensor((visit.args, visit.kwargs))
        if self.positions is not None:
            record.extra[POSITION] = self.positions.at(visit.path)
        sites = self.sites
        if "attn" in sites and self.too_large(call):
            sites = tuple(dict.fromkeys((*sites, "q", "k", "scale", "mask")))
        if "mask" in sites and not record.causal:
            available["mask"] = call.mask  # is written out, where it is causal, by being read
        asked = {site: available[site] for site in sites if available.get(site) is not None}
        tensors = {site: value for site, value in asked.items() if isinstance(value, Tensor)}
        asked |= self.keeper.keep(tensors | {f"extra.{name}": value for name, value in record.extra.items()})
        for site, value in asked.items():
            if site.startswith("extra."):
                record.extra[site.removeprefix("extra.")] = value
            else:
                setattr(record, site, value)

    def hand_over(self) -> None:
        """Give away the layers that are complete, unless others are still being read."""
        reading = any(frame.records or frame.visit.calls or frame.visit.attended for frame in self.frames)
        if self.each is None or self.failure is not None or self.last or reading:
            return
        if self.records and self.keeper.changed():
            self.failure = Overwritten()
            raise self.failure
        self.keeper.forget()
        self.give(self.records)

    def give(self, records: list[LayerRecord]) -> None:
        """Hand these records over, first to last; what the receiver computes is no part of the model's pass."""
        assert self.each is not None
        try:
            while records:
                record = records.pop(0)
                if record.index not in self.handed:
                    # else every operation would first be offered to the watch, which costs half as much again
                    with self.apart(), torch._C.DisableTorchFunction():
                        self.each(record, self.token_count)
                    self.handed.add(record.index)
        except BaseException as failure:
            self.failure = failure  # comes out even where the model catches exceptions
            raise

    def selected(self) -> list[LayerRecord]:
        """The records of the layers that were asked for; an error where one does not exist."""
        self.keeper.forget()
        if self.count == 0:
            adapted = sorted(path for path in merged("adapters") if not path.endswith("."))
            raise IncompleteCapture(
                f"{self.name}: no attention was seen. Looked for calls of F.scaled_dot_product_attention, softmax "
                "between products of queries, keys and values, "
                "nn.MultiheadAttention and nn.TransformerEncoder, transformers' attention interface, and modules "
                f"with an adapter ({', '.join(name.rpartition('.')[2] for name in adapted)})"
                + self.suspects_hint()
            )
        try:
            numbers = parse_numbers("layer", self.chosen, self.count)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None
        return [record for record in self.records if numbers is None or record.index in numbers]

    # Residual stream --------------------------------------------------------------------------------------

    def watch_places(self) -> ExitStack:
        """Hooks on the submodules that sites of the residual stream and inside attention are read from."""
        stack = ExitStack()
        attention = [path for path, child in self.modules.items() if is_attention(child)]
        for path in attention:
            module = self.modules[path]
            for name in merged("inner_sites"):
                if isinstance(getattr(module, name, None), nn.Module):
                    stack.callback(self.hook(module, (name, "input")).remove)
        if not self.reads_stream:
            return stack
        watched = set()
        for path in (*attention, *self.mixers):
            block = self.block_of(path)
            if block is None:
                continue
            inside = path[len(block) :].lstrip(".")
            module = self.module.get_submodule(block)
            known = {"resid_pre": before_attention(module)}
            if block_is_known(module, self.modules[path]):
                known |= {
                    "attn_out": attn_out_reading(module, inside),
                    "resid_mid": after_attention(module, inside),
                }
            readings = {site: how for site, how in known.items() if site in self.sites and how is not None}
            self.readings[path] = readings
            for source in (source for how in readings.values() for source in how.sources):
                if source[0] and (block, *source) not in watched:
                    watched.add((block, *source))
                    stack.callback(self.hook(module, source).remove)
        return stack

    def hook(self, block: nn.Module, source: tuple[str, str]) -> Any:
        submodule, side = source
        target = block.get_submodule(submodule)

        def note(value: Any) -> None:
            frame = next((f for f in reversed(self.frames) if f.visit.module is block), None)
            if frame is not None and not self.busy:
                frame.passed[source] = value

        if side == "input":
            return target.register_forward_pre_hook(
                lambda _, args, kwargs: note(_first_tensor((args, kwargs))), with_kwargs=True
            )
        return target.register_forward_hook(
            lambda _, args, output: note(output if side == "outputs" else _first_tensor(output))
        )

    def block_of(self, path: str) -> str | None:
        if path not in self.blocks:
            self.blocks[path] = block_path(self.module, path)
        return self.blocks[path]

    def expect_residual_stream(self, record: LayerRecord, visit: Visit) -> None:
        if not self.reads_stream:
            return
        block = self.block_of(visit.path)
        frame = next((f for f in reversed(self.frames) if f.visit.path == block), None)
        if record.mixer and (block is None or frame is None):
            return
        if block is None or frame is None:
            raise InputError(
                f"{visit.path or self.name}: no block is known around this attention, so "
                f"{', '.join(map(repr, STREAM))} cannot be read; ask for other sites"
            )
        readings = dict(self.readings.get(visit.path, {}))
        if "resid_post" in self.sites:
            readings["resid_post"] = resid_post_reading(frame.visit.module)
        if "resid_mid" in self.sites and "resid_mid" not in readings and not record.mixer:
            raise InputError(
                f"{visit.path}: where {class_path(frame.visit.module)} holds the residual stream after attention is "
                "not known; declare it with workbench.captures.Block (docs/adding/family.md), or leave out 'resid_mid'"
            )
        frame.records.append((record, readings))

    def read_residual_stream(self, frame: _Frame) -> None:
        if not frame.records:
            return
        passed = frame.passed | {
            ("", "input"): _first_tensor((frame.visit.args, frame.visit.kwargs)),
            ("", "output"): _first_tensor(frame.visit.output),
            ("", "outputs"): frame.visit.output,
        }
        for record, readings in frame.records:
            for site, how in readings.items():
                missing = [source for source in how.sources if passed.get(source) is None]
                if missing:
                    raise IncompleteCapture(
                        f"{record.path}: {site} is read from {missing}, which did not run"
                    )
                value = how(*(passed[source] for source in how.sources))
                setattr(record, site, self.keeper.keep({site: value})[site])

    # Completeness -----------------------------------------------------------------------------------------

    def completeness(self, strict: bool) -> list[str]:
        """Name the attention modules that ran unseen; returns those that did not run.

        Raises IncompleteCapture for library models and library modules, warns for a user's own.
        """
        static = [path for path, child in self.modules.items() if must_attend(child)]
        unseen = [
            path for path in static if path in self.entered and not self.is_seen(path)
        ] + self.suspects()
        unseen = [
            path for path in unseen if not any(_inside(other, path) for other in unseen if other != path)
        ]
        unseen = [path for path in unseen if path not in self.gaps] + list(self.gaps)
        if unseen:
            message = (
                f"{self.name}: {self.count} attention calls were seen, but these modules attend in another way: "
                f"{self.named(unseen)}. They need an adapter (docs/capture.md)"
            )
            if strict or any(is_library_model(self.modules[path]) for path in unseen):
                raise IncompleteCapture(message + "; check=False returns what was seen")
            warnings.warn(message, stacklevel=3)
        return [
            path for path, child in self.modules.items() if path not in self.entered and is_attention(child)
        ]

    def named(self, paths: Iterable[str]) -> str:
        """Modules by path and class, with what is known of why their attention is in no record."""
        return ", ".join(
            f"{path or 'the model'} ({type(self.modules[path]).__name__}"
            + (f": {self.gaps[path]})" if path in self.gaps else ")")
            for path in paths
        )

    def is_seen(self, path: str) -> bool:
        return any(
            _inside(path, seen) or _inside(seen, path) for seen in self.attended if seen or path == seen
        )

    def suspects(self) -> list[str]:
        return [
            path
            for path, child in self.modules.items()
            if path in self.worked and path and not self.is_seen(path) and looks_like_attention(child)
        ]

    def suspects_hint(self) -> str:
        found = [path for path in self.suspects() if path not in self.gaps] + list(self.gaps)
        return (
            f". These modules look like attention: {self.named(found)}; see docs/capture.md for adapters"
            if found
            else ""
        )


def _reads_calls(module: nn.Module) -> bool:
    adapter = adapter_of(type(module))
    return adapter is not None and adapter.reads_calls


def _counts(call: Call) -> tuple[int, int] | None:
    """How many queries and keys an attention has among tokens; None for others."""
    return (call.q.shape[2], call.k.shape[2]) if call.kind == "token" else None


def _inside(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.") or outer == ""


def _first_tensor(value: Any) -> Any:
    return next(iter(tensors_in(value)), None)


# Keeping tensors of a running model ------------------------------------------------------------------------


class Keeper:
    """Keeps tensors without copying them where that is safe.

    A view is copied where it would keep alive a larger storage than what is kept of it, or where the storage
    belongs to ``owned`` tensors (parameters, buffers, the batch), which may change after the run. A kept
    tensor that the model overwrites in place shows in ``changed``; with ``copy`` everything is copied at
    once.
    """

    def __init__(self, owned: Iterable[Tensor], copy: bool = False) -> None:
        self.owned = {_address(tensor) for tensor in owned}
        self.copy = copy
        self._kept: list[tuple[Tensor, int]] = []

    def keep(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors, safe to keep; views that together fill their storage share it."""
        distinct: dict[int, set[tuple[object, ...]]] = {}
        needed: dict[int, int] = {}
        for tensor in tensors.values():
            address, view = _address(tensor), _view(tensor)
            if view not in distinct.setdefault(address, set()):
                distinct[address].add(view)
                needed[address] = needed.get(address, 0) + _footprint(tensor)
        kept = {}
        for name, tensor in tensors.items():
            address = _address(tensor)
            own = address in self.owned or tensor.untyped_storage().nbytes() > needed[address]
            if self.copy or own or tensor.is_inference():  # those of inference mode have no versions
                kept[name] = _compact(tensor)
            else:
                kept[name] = tensor
                self.note(tensor)
        return kept

    def note(self, tensor: Tensor) -> None:
        """Remember this tensor's version."""
        self._kept.append((tensor, tensor._version))

    def keep_briefly(self, tensor: Tensor) -> Tensor:
        """A tensor needed for a while only: noted, or copied in copy mode."""
        if self.copy or tensor.is_inference():
            return _compact(tensor)
        self.note(tensor)
        return tensor

    def changed(self) -> bool:
        """Whether a noted tensor was overwritten since."""
        return any(tensor._version != version for tensor, version in self._kept)

    def forget(self) -> None:
        """Drop the notes (and with them the tensors)."""
        self._kept.clear()


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # tensors without a storage of their own, as those of some quantisations
        return 0


def _view(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _footprint(tensor: Tensor) -> int:
    return dense(tensor).numel() * tensor.element_size()


def _compact(tensor: Tensor) -> Tensor:
    if tensor.is_inference():
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # an ordinary tensor, of a model that enters that mode
            return tensor.clone(memory_format=torch.contiguous_format)
    return dense(tensor).clone(memory_format=torch.contiguous_format).expand(tensor.shape)


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in nested dicts, tuples and lists."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
