"""Turn the calls of attention in a running model into records: their numbers, checks and kept tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from workbench.captures.effective import EFFECTIVE, LAYERS, Mixing, joined, refuse_unknown
from workbench.captures.family import Visit, adapter_of, merged
from workbench.captures.keeper import Keeper, address, first_tensor, tensors_in
from workbench.captures.labelled_tokens import attended_keys
from workbench.captures.layer_records import Call, CausalRecord, LayerRecord
from workbench.captures.position_path import POSITION, Positions
from workbench.captures.recomputation import NonFiniteValues, call_weights, check_call
from workbench.captures.token_labels import source_of
from workbench.captures.visits import Completeness, Frame, Stream, Visits
from workbench.core.errors import IncompleteCapture, InputError
from workbench.core.options import parse_numbers


class Overwritten(Exception):
    """The model has overwritten tensors of a layer that is about to be handed over."""


@dataclass
class Numbering:
    """The numbers of layers in call order. In later passes a call has the number of the same call in the first."""

    count: int = 0
    """The number of the next layer."""
    calls: Counter[str] = field(default_factory=Counter)
    """Calls of this pass, by module."""
    first: dict[tuple[str, int], int] = field(default_factory=dict)
    """Numbers of the first pass by module and call; what reads images runs only there."""
    repeats: bool = False
    """Whether this pass is not the first."""

    def begin(self, count: int) -> None:
        """Begin a pass whose first layer has the number ``count``."""
        self.count = count
        self.calls.clear()

    def find(self, path: str) -> None:
        """Continue from the number that the next call of a module had in the first pass."""
        if self.repeats:
            self.count = self.first.get((path, self.calls[path]), self.count)

    def advance(self, path: str, calls: int = 1) -> None:
        for call in range(0 if self.repeats else calls):
            self.first[path, self.calls[path] + call] = self.count + call
        self.count += calls
        self.calls[path] += calls


class Rows(Protocol):
    """Which rows of the queries are recorded, where it is not all of them."""

    def narrow(self, call: Call) -> Call:
        """Return the call of some of its queries, before its weights are formed and checked."""
        ...

    def trim(self, record: LayerRecord, call: Call, attn: Tensor | None) -> tuple[Call, Tensor | None]:
        """Return the tensors to keep, after the weights are formed and checked."""
        ...


@dataclass(eq=False)
class Recorder:
    """Record what the routes see while the model runs.

    ``each`` gets a record, ``token_count`` and ``attended`` as soon as its layer is complete, and the record is freed;
    layers whose numbers are in ``handed`` are left out, and those handed over join them. With ``rows``, layers without
    attention among tokens are left out.
    """

    writes: ClassVar[bool] = False
    """Whether outputs of attention are changed while the model runs."""

    modules: dict[str, nn.Module]
    name: str
    keeper: Keeper
    chosen: tuple[int, ...] | None
    sites: tuple[str, ...]
    check: bool
    keep_nonfinite: bool = False
    each: Callable[[LayerRecord, int | None, Tensor | None], None] | None = None
    handed: set[int] = field(default_factory=set)
    map_limit: int | None = None
    rows: Rows | None = None
    explicit: bool | None = False
    """Whether the recorded map is the one that a layer's output is computed from; None where the model forms it."""

    result: Any = None
    positions: Positions | None = None
    failure: BaseException | None = None
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Layers that ``rows`` leaves out."""
    fast_path_off: bool = False
    """Whether torch's fast path would have been taken somewhere, had it not been off."""
    checkpointed: bool = False
    """Whether activation checkpointing was left out."""
    other_threads: bool = False
    """Whether the model also ran in other threads."""
    records: list[LayerRecord] = field(default_factory=list)
    numbers: Numbering = field(default_factory=Numbering)
    token_count: int | None = None
    """Tokens of the first layer that attends among tokens."""
    attended: Tensor | None = None
    """Keys of that layer that some query may attend to, (batch, token); None for all, or where unknown."""
    only_counts: bool = False
    """Whether layers of this pass are counted and not recorded."""

    def __post_init__(self) -> None:
        self.visits = Visits(self.modules)
        self.completeness = Completeness(self.modules, self.name)
        self.stream = Stream(self.visits, self.name, self.sites, self.keeper)
        # Layers are only counted by running, so for layer -2 the last two are kept until the end.
        self.last = 0 if self.chosen is None else -min(0, *self.chosen, 0)
        of_modules = (
            m.__dict__[kind].values() for m in self.modules.values() for kind in ("_parameters", "_buffers")
        )
        self.weights = {address(tensor) for tensors in of_modules for tensor in tensors if tensor is not None}
        self.weights.discard(0)  # of weights that are elsewhere, and of tensors without elements

    # What the routes report -------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.visits.busy or bool(Visits.adapters)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.busy:
            self.completeness.entered.add(self.visits.enter(module, args, kwargs).path)

    def leave(self, module: nn.Module, output: Any) -> None:
        # A hook of someone else may have stopped the module before it was entered. Without an output an exception is
        # on its way out, and layers are not complete.
        frame = None if self.busy else self.visits.leave(module)
        if frame is not None and output is not None:
            self.read(frame, output)
            self.hand_over()

    def read(self, frame: Frame, output: Any) -> None:
        """Read the attention and the residual stream of a module that has run."""
        visit, frames = frame.visit, self.visits.frames
        visit.output = output
        inputs = {id(tensor) for tensor in tensors_in((visit.args, visit.kwargs))}
        works = not all(id(tensor) in inputs for tensor in tensors_in(output))
        if works:
            self.completeness.worked.add(visit.path)
        frames.append(frame)
        if works and visit.path in self.visits.mixers and not frame.attends:
            self.record_mixer(frame)
        adapter = adapter_of(type(visit.module))
        if adapter is not None:
            self.completeness.attended.add(visit.path)
            expected = max(1, len(visit.calls)) if adapter.reads_calls and not adapter.joins else 1
            if any(self.keeps(self.numbers.count + offset) for offset in range(expected)):
                with self.visits.reading():
                    calls = adapter.read(visit)
                for call in calls:
                    self.record(call, visit)
            else:
                self.numbers.advance(visit.path, expected)
        frames.pop()
        self.stream.read(frame)

    def wants(self, module: nn.Module | None) -> bool:
        if self.busy or self.visits.in_mixer:
            return False
        self.visits.note_attention()
        frame = self.visits.innermost(module)
        self.numbers.find(frame.visit.path)
        self.completeness.attended.add(frame.visit.path)
        adapted = self.visits.adapted(frame)
        return self.keeps(self.numbers.count) if adapted is None else _reads_calls(adapted.visit.module)

    def shares_map(self, shape: tuple[int, ...], dtype: torch.dtype, formed: bool) -> bool:
        if self.explicit is False or not (self.explicit or formed):
            return False
        if (
            "attn" not in self.sites
            or dtype.itemsize < 4
            or self.visits.adapted(self.visits.frames[-1]) is not None
        ):
            return False
        return self.map_limit is None or math.prod(shape[1:]) <= self.map_limit

    def skip(self, module: nn.Module | None) -> None:
        if self.busy or self.visits.in_mixer:
            return
        frame = self.visits.innermost(module)
        if self.visits.adapted(frame) is None:
            self.numbers.advance(frame.visit.path)

    def observes(self, module: nn.Module) -> bool:
        if self.busy or self.visits.innermost(module).visit.module is not module:
            return False
        return self.keeps(self.numbers.count)

    def observed(self, module: nn.Module, output: Tensor, inside: dict[str, Any]) -> None:
        self.visits.innermost(module).visit.attended = output, inside

    def seen(self, call: Call, module: nn.Module | None) -> None:
        frame = self.visits.innermost(module)
        adapted = self.visits.adapted(frame)
        if adapted is None:
            self.record(call, frame.visit)
            self.hand_over()
            return
        for site in ("q", "k", "v", "head_out"):
            setattr(call, site, self.keeper.keep_briefly(getattr(call, site)))
        adapted.visit.calls.append(call)

    def missed(self, reason: str, of_scores: bool = True) -> None:
        if not of_scores and self.visits.may_mix:
            return  # linear attention may well normalise its queries by a softmax
        self.visits.note_attention()
        self.completeness.gaps.setdefault(self.visits.frames[-1].visit.path, reason)

    def owns(self, tensor: Tensor) -> bool:
        return address(tensor) in self.weights

    def miss_fast_path(self) -> None:
        self.fast_path_off = True

    def miss_checkpoint(self) -> None:
        self.checkpointed = True

    def miss_thread(self) -> None:
        self.other_threads = True

    def expects(self) -> bool:
        return self.keeps(self.numbers.count)

    def module_and_input(self) -> tuple[nn.Module, Any] | None:
        if self.visits.in_mixer:
            return None
        adapted = self.visits.adapted(self.visits.frames[-1])
        if adapted is not None and not _reads_calls(adapted.visit.module):
            return None
        visit = self.visits.frames[-1].visit
        return visit.module, first_tensor((visit.args, visit.kwargs))

    # Records ----------------------------------------------------------------------------------------------

    def keeps(self, index: int) -> bool:
        return not self.only_counts and (self.is_chosen(index) or self.last > 0)

    def is_chosen(self, index: int) -> bool:
        return self.chosen is None or index in self.chosen

    def leave_out(self, path: str, mixer: str = "") -> None:
        if self.keeps(self.numbers.count) and not self.numbers.repeats:
            self.left_out.append(f"{self.numbers.count} ({path}{mixer and f': {mixer}'})")
        self.numbers.advance(path)

    def record(self, call: Call, visit: Visit) -> None:
        if self.rows is not None and call.kind != "token":
            self.leave_out(visit.path)
            return
        index, number = self.numbers.count, self.numbers.calls[visit.path]
        self.numbers.advance(visit.path)
        if self.token_count is None and call.kind != "channel" and call.origin is None:
            self.token_count = call.head_out.shape[2]
            if not call.causal and call.mask is not None and call.kind == "token":
                self.attended = attended_keys(call.mask, self.token_count)
        full_call, call = call, call if self.rows is None else self.rows.narrow(call)
        if not self.keeps(index):
            return
        with self.visits.outside_model():
            source = source_of(visit, full_call)
        causal = call.causal and self.too_large(call)
        record = (CausalRecord if causal else LayerRecord)(
            index, visit.path, number, call.kind, call.rows_sum_to_one, source, _counts(call),
            extra=call.extra | self.stream.inner_sites(visit), origin=call.origin,
        )  # fmt: skip
        name = f"{self.name}, layer {index} ({visit.path or type(visit.module).__name__})"
        with self.visits.outside_model():
            try:
                attn = call_weights(call) if "attn" in self.sites and not self.too_large(call) else None
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
            if attn is not None:
                attn = attn.to(torch.promote_types(attn.dtype, torch.float32))
            if self.check:
                self.check_call(call, attn, name)
            if self.rows is not None:
                call, attn = self.rows.trim(record, call, attn)
            self.fill(record, call, attn, visit)
        self.add(record, visit)

    def too_large(self, call: Call) -> bool:
        """Return whether a map has more entries per input than are to be formed, and follows from its operands."""
        if self.map_limit is None or call.kind != "token" or call.attn is not None:
            return False
        return call.q.shape[1] * call.q.shape[2] * call.k.shape[2] > self.map_limit

    def add(self, record: LayerRecord, visit: Visit) -> None:
        self.records.append(record)
        if self.last:
            until = record.index - self.last
            self.records = [r for r in self.records if self.is_chosen(r.index) or r.index > until]
        self.stream.expect(record, visit)

    def scanned(self, read: Callable[[str], Mixing]) -> None:
        """Note a scan of the layer that runs, until the layer is complete."""
        if not self.busy:
            frame = next(
                (f for f in reversed(self.visits.frames) if f.visit.path in self.visits.mixers), None
            )
            if frame is not None:
                frame.scans.append(read)

    def mixing(self, frame: Frame, mixer: str) -> Mixing:
        """Return the effective map of a layer without attention, with its values and the outputs of its heads."""
        visit = frame.visit
        name, of_class = f"{self.name}, {visit.path}", LAYERS.get(type(visit.module).__name__)
        with self.visits.reading():
            if of_class is not None:
                return of_class(visit, name)
            if not frame.scans:
                refuse_unknown(visit, mixer)
            return joined([read(name) for read in frame.scans])

    def record_mixer(self, frame: Frame) -> None:
        """Record a layer that mixes tokens by something other than attention: its name and its input."""
        visit = frame.visit
        mixer = self.visits.mixers[visit.path]
        self.completeness.attended.add(visit.path)
        self.numbers.find(visit.path)
        if self.rows is not None:
            self.leave_out(visit.path, mixer)
            return
        index, number = self.numbers.count, self.numbers.calls[visit.path]
        self.numbers.advance(visit.path)
        tokens = first_tensor((visit.args, visit.kwargs))
        if self.token_count is None and tokens is not None and tokens.ndim == 3:
            self.token_count = tokens.shape[1]
        if not self.keeps(index):
            return
        record = LayerRecord(index, visit.path, number, "none", rows_sum_to_one=False, mixer=mixer)
        if "input" in self.sites and tokens is not None:
            record.input = self.keeper.keep({"input": tokens})["input"]
        if EFFECTIVE in self.sites:
            kept = self.keeper.keep(self.mixing(frame, mixer)._asdict())
            record.extra[EFFECTIVE] = kept[EFFECTIVE]
            record.v = kept["v"] if "v" in self.sites else None
            record.head_out = kept["head_out"] if "head_out" in self.sites else None
        self.add(record, visit)

    def check_call(self, call: Call, attn: Tensor | None, name: str) -> None:
        try:
            with torch.no_grad():
                check_call(call, attn, name)
        except NonFiniteValues as error:
            if not self.keep_nonfinite:
                raise
            if not self.notes:  # NaN spreads: of the layers after the first it says nothing new
                self.notes.append(f"captured without checks: {error}")

    def fill(self, record: LayerRecord, call: Call, attn: Tensor | None, visit: Visit) -> None:
        """Put the sites of a call into its record, kept from being overwritten."""
        available: dict[str, Any] = {
            "q": call.q, "k": call.k, "v": call.v, "scale": call.scale, "attn": attn, "head_out": call.head_out,
        }  # fmt: skip
        if "input" in self.sites:
            available["input"] = first_tensor((visit.args, visit.kwargs))
        if self.positions is not None:
            record.extra[POSITION] = self.positions.at(visit.path)
        sites = self.sites
        if "attn" in sites and self.too_large(call):
            sites = tuple(dict.fromkeys((*sites, "q", "k", "scale", "mask")))
        if "mask" in sites and not record.causal:
            available["mask"] = call.mask  # is written out, where it is causal, by being read
        values = {site: available[site] for site in sites if available.get(site) is not None}
        tensors = {site: value for site, value in values.items() if isinstance(value, Tensor)}
        values |= self.keeper.keep(tensors | {f"extra.{name}": value for name, value in record.extra.items()})
        for site, value in values.items():
            if site.startswith("extra."):
                record.extra[site.removeprefix("extra.")] = value
            else:
                setattr(record, site, value)

    def hand_over(self) -> None:
        """Give away the layers that are complete, unless others are still being read."""
        reading = any(
            frame.records or frame.projected or frame.visit.calls or frame.visit.attended
            for frame in self.visits.frames
        )
        if self.each is None or self.failure is not None or self.last or reading:
            return
        if self.records and self.keeper.changed():
            self.failure = Overwritten()
            raise self.failure
        self.keeper.forget()
        self.give(self.records)

    def give(self, records: list[LayerRecord]) -> None:
        """Hand these records over, first to last; the receiver's computations are not part of the model's pass."""
        assert self.each is not None
        try:
            while records:
                record = records.pop(0)
                if record.index not in self.handed:
                    with self.visits.outside_model():
                        self.each(record, self.token_count, self.attended)
                    self.handed.add(record.index)
        except BaseException as failure:
            self.failure = failure  # comes out even where the model catches exceptions
            raise

    def selected(self) -> list[LayerRecord]:
        """Return the records of the chosen layers; an error where one does not exist."""
        self.keeper.forget()
        if self.numbers.count == 0:
            adapted = sorted(path for path in merged("adapters") if not path.endswith("."))
            raise IncompleteCapture(
                f"{self.name}: no attention was seen. Looked for calls of F.scaled_dot_product_attention, softmax "
                "between products of queries, keys and values, "
                "nn.MultiheadAttention and nn.TransformerEncoder, transformers' attention interface, and modules "
                f"with an adapter ({', '.join(name.rpartition('.')[2] for name in adapted)})"
                + self.completeness.suspects_hint()
            )
        try:
            numbers = parse_numbers("layer", self.chosen, self.numbers.count)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None
        return [record for record in self.records if numbers is None or record.index in numbers]


def _reads_calls(module: nn.Module) -> bool:
    adapter = adapter_of(type(module))
    return adapter is not None and adapter.reads_calls


def _counts(call: Call) -> tuple[int, int] | None:
    """Return the numbers of queries and keys of attention among tokens; None for others."""
    return (call.q.shape[2], call.k.shape[2]) if call.kind == "token" else None
