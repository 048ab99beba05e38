"""The passes through a model's modules: the attention seen inside them, and the residual stream around it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from workbench.attention.base import merge_heads
from workbench.captures.effective import Mixing
from workbench.captures.family import Reading, Visit, adapter_of, class_path, merged, mixer_of
from workbench.captures.keeper import Keeper, first_tensor
from workbench.captures.layer_records import STREAM, LayerRecord
from workbench.captures.layout import (
    after_attention,
    attn_out_reading,
    before_attention,
    block_path,
    is_attention,
    is_library_model,
    looks_like_attention,
    must_attend,
    reads_block,
    resid_post_reading,
    token_mixers,
)
from workbench.captures.projections import PROJ_OUT, linear_weight, projecting_module
from workbench.captures.recomputation import TOLERANCE
from workbench.captures.routes import without_watch
from workbench.captures.thread_guard import in_this_thread
from workbench.core.errors import IncompleteCapture, InputError


@dataclass(eq=False)
class Frame:
    """A visit in progress: its records whose residual stream is not read yet, and what passed through submodules."""

    visit: Visit
    records: list[tuple[LayerRecord, dict[str, Reading]]] = field(default_factory=list)
    projected: list[LayerRecord] = field(default_factory=list)
    """Records whose heads are not projected yet."""
    passed: dict[tuple[str, str], Any] = field(default_factory=dict)
    scans: list[Callable[[str], Mixing]] = field(default_factory=list)
    """Scans of a layer without attention, not yet read."""
    attends: bool = False
    """Whether attention was seen inside, read or not."""


class Visits:
    """The visits in progress, outermost first."""

    adapters: ClassVar[int] = 0
    """Adapters that are reading a module; one capture runs at a time, in one thread (`thread_guard`)."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.modules = modules
        self.paths = {child: path for path, child in modules.items()}
        self.mixers = token_mixers(modules[""])
        self.opaque = {path for path in self.mixers if (mixer_of(type(modules[path])) or ("", False))[1]}
        """Mixers that are named and not read, whatever runs inside."""
        self.frames: list[Frame] = []
        self.busy = False
        """Whether the running code is not the model's: an adapter, a check, the function that gets the layers."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Visit:
        parents = [frame.visit for frame in reversed(self.frames)]
        visit = Visit(module, self.paths.get(module, ""), args, kwargs, parents)
        self.frames.append(Frame(visit))
        return visit

    def leave(self, module: nn.Module) -> Frame | None:
        """Close the visit of a module and those left open inside it by an exception; None where it was not entered."""
        if not any(frame.visit.module is module for frame in self.frames):
            return None
        while (frame := self.frames.pop()).visit.module is not module:
            pass
        return frame

    def innermost(self, module: nn.Module | None) -> Frame:
        """Return the innermost frame of a module, or of any module."""
        frames = (frame for frame in reversed(self.frames) if frame.visit.module is module)
        return next(frames, self.frames[-1])

    def adapted(self, frame: Frame) -> Frame | None:
        """Return the innermost frame at or around this one whose module has an adapter."""
        around = reversed(self.frames[: self.frames.index(frame) + 1])
        return next((frame for frame in around if adapter_of(type(frame.visit.module))), None)

    @property
    def in_mixer(self) -> bool:
        """Whether a module runs that mixes tokens by something other than attention and is not read."""
        return bool(self.opaque) and any(frame.visit.path in self.opaque for frame in self.frames)

    @property
    def may_mix(self) -> bool:
        """Whether a module runs that may mix tokens by something other than attention."""
        return bool(self.mixers) and any(frame.visit.path in self.mixers for frame in self.frames)

    def note_attention(self) -> None:
        for frame in self.frames if self.mixers else ():
            frame.attends = True

    @contextmanager
    def outside_model(self) -> Generator[None]:
        """Run code that is not the model's, whose operations are not offered to the watch over torch's functions."""
        before, self.busy = self.busy, True
        try:
            with without_watch():
                yield
        finally:
            self.busy = before

    @contextmanager
    def reading(self) -> Generator[None]:
        """Run an adapter, which calls the model's modules; recorders around this one see nothing of it either."""
        Visits.adapters += 1
        try:
            with self.outside_model():
                yield
        finally:
            Visits.adapters -= 1


@dataclass(eq=False)
class Completeness:
    """Which modules ran, which of them attended, and which attended unseen."""

    modules: dict[str, nn.Module]
    name: str
    entered: set[str] = field(default_factory=set)
    attended: set[str] = field(default_factory=set)
    worked: set[str] = field(default_factory=set)
    """Modules whose output is not one of their inputs."""
    gaps: dict[str, str] = field(default_factory=dict)
    """Why attention that ran in a module is in no record, by the module's path."""

    def check(self, calls: int, strict: bool) -> list[str]:
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
                f"{self.name}: {calls} attention calls were seen, but these modules attend in another way: "
                f"{self.described(unseen)}. They need an adapter (docs/capture.md)"
            )
            if strict or any(is_library_model(self.modules[path]) for path in unseen):
                raise IncompleteCapture(message + "; check=False returns what was seen")
            warnings.warn(message, stacklevel=3)
        return [
            path for path, child in self.modules.items() if path not in self.entered and is_attention(child)
        ]

    def described(self, paths: Iterable[str]) -> str:
        """Return modules by path and class, with the reason why their attention is in no record."""
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
            if path in self.worked and path and looks_like_attention(child) and not self.is_seen(path)
        ]

    def suspects_hint(self) -> str:
        paths = [path for path in self.suspects() if path not in self.gaps] + list(self.gaps)
        if not paths:
            return ""
        return (
            f". These modules look like attention: {self.described(paths)}; see docs/capture.md for adapters"
        )


def _inside(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.") or outer == ""


class Stream:
    """Read the sites of the residual stream when the block around an attention is complete."""

    def __init__(self, visits: Visits, name: str, sites: tuple[str, ...], keeper: Keeper) -> None:
        self.visits, self.name, self.keeper = visits, name, keeper
        self.sites = [site for site in STREAM if site in sites]
        self.projected = PROJ_OUT in sites
        self.blocks: dict[str, str | None] = {}
        self.readings: dict[str, dict[str, Reading]] = {}

    def watch(self) -> ExitStack:
        """Put hooks on the submodules that sites of the residual stream and inside attention are read from."""
        modules, stack = self.visits.modules, ExitStack()
        attention = [path for path, child in modules.items() if is_attention(child)]
        for module in (modules[path] for path in attention):
            for name in merged("inner_sites"):
                if isinstance(getattr(module, name, None), nn.Module):
                    stack.callback(self._hook(module, (name, "input")).remove)
        for owner in {projecting_module(modules[""], path) for path in attention} if self.projected else ():
            for name, child in modules[owner].named_modules():
                if linear_weight(child) is not None or isinstance(child, nn.MultiheadAttention):
                    stack.callback(self._hook(modules[owner], (name, "input")).remove)
                    stack.callback(self._hook(modules[owner], (name, "output")).remove)
        watched = set()
        for path in (*attention, *self.visits.mixers) if self.sites else ():
            block = self._block_of(path)
            if block is None:
                continue
            inside = path[len(block) :].lstrip(".")
            module = modules[""].get_submodule(block)
            readings = {"resid_pre": before_attention(module)}
            if reads_block(module, modules[path]):
                readings["attn_out"] = attn_out_reading(module, inside)
                readings["resid_mid"] = after_attention(module, inside)
            self.readings[path] = {
                site: reading
                for site, reading in readings.items()
                if site in self.sites and reading is not None
            }
            for source in (source for reading in self.readings[path].values() for source in reading.sources):
                if source[0] and (block, *source) not in watched:
                    watched.add((block, *source))
                    stack.callback(self._hook(module, source).remove)
        return stack

    def _hook(self, block: nn.Module, source: tuple[str, str]) -> Any:
        submodule, side = source
        target = block.get_submodule(submodule)

        def note(value: Any) -> None:
            frame = next((f for f in reversed(self.visits.frames) if f.visit.module is block), None)
            if frame is not None and not self.visits.busy:
                frame.passed[source] = value

        if side == "input":
            return target.register_forward_pre_hook(
                in_this_thread(lambda _, args, kwargs: note(first_tensor((args, kwargs)))), with_kwargs=True
            )
        return target.register_forward_hook(
            in_this_thread(
                lambda _, args, output: note(output if side == "outputs" else first_tensor(output))
            )
        )

    def _block_of(self, path: str) -> str | None:
        if path not in self.blocks:
            self.blocks[path] = block_path(self.visits.modules[""], path)
        return self.blocks[path]

    def inner_sites(self, visit: Visit) -> dict[str, Tensor]:
        """Return the sites inside an attention: inputs of its submodules."""
        passed = next((frame.passed for frame in reversed(self.visits.frames) if frame.visit is visit), {})
        sites = {site: passed.get((name, "input")) for name, site in merged("inner_sites").items()}
        # models give their cache a latent with an axis for heads, of which there is one
        return {
            site: value.squeeze(1) if value.ndim == 4 else value
            for site, value in sites.items()
            if isinstance(value, Tensor)
        }

    def expect(self, record: LayerRecord, visit: Visit) -> None:
        """Have the sites of a record read when its block is complete."""
        if self.projected and not record.mixer:
            owner = projecting_module(self.visits.modules[""], visit.path)
            for frame in self.visits.frames:
                if frame.visit.path == owner:
                    frame.projected.append(record)
        if not self.sites:
            return
        block = self._block_of(visit.path)
        frame = next((f for f in reversed(self.visits.frames) if f.visit.path == block), None)
        if block is None or frame is None:
            if record.mixer:
                return
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

    def read(self, frame: Frame) -> None:
        """Read the sites of the records that expect them in this block."""
        for record in frame.projected:
            value = _projected(record, frame)
            if value is not None:
                record.extra[PROJ_OUT] = self.keeper.keep({PROJ_OUT: value})[PROJ_OUT]
        if not frame.records:
            return
        passed = frame.passed | {
            ("", "input"): first_tensor((frame.visit.args, frame.visit.kwargs)),
            ("", "output"): first_tensor(frame.visit.output),
            ("", "outputs"): frame.visit.output,
        }
        for record, readings in frame.records:
            for site, reading in readings.items():
                missing = [source for source in reading.sources if passed.get(source) is None]
                if missing:
                    raise IncompleteCapture(
                        f"{record.path}: {site} is read from {missing}, which did not run"
                    )
                value = reading(*(passed[source] for source in reading.sources))
                setattr(record, site, self.keeper.keep({site: value})[site])


def _projected(record: LayerRecord, frame: Frame) -> Tensor | None:
    """Return the output of the linear layer whose input is the concatenated head outputs; None without such a layer."""
    if record.head_out is None:
        return None
    heads = merge_heads(record.head_out)
    bound = TOLERANCE.get(heads.dtype, 5e-2) * heads.detach().abs().max()
    for (name, side), value in frame.passed.items():
        output = frame.passed.get((name, "output"))
        if side != "input" or not isinstance(output, Tensor):
            continue
        module = frame.visit.module.get_submodule(name)
        if isinstance(module, nn.MultiheadAttention):  # it applies its projection without calling it
            if record.path == f"{frame.visit.path}.{name}".strip("."):
                return output if module.batch_first else output.transpose(0, 1)
            continue
        same_size = value.numel() == heads.numel() and value.shape[-1] == heads.shape[-1]
        if same_size and (value.reshape(heads.shape) - heads).abs().max() <= bound:
            return output.reshape(*heads.shape[:-1], -1)
    return None
