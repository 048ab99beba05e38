"""The passes through a model's modules, and which attention inside them was seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from workbench.captures.effective import Mixing
from workbench.captures.family import Reading, Visit, adapter_of, mixer_of
from workbench.captures.layer_records import LayerRecord
from workbench.captures.layout import (
    is_attention,
    is_library_model,
    looks_like_attention,
    must_attend,
    token_mixers,
)
from workbench.captures.routes import without_watch
from workbench.core.errors import IncompleteCapture


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
