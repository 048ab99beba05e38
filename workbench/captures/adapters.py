"""Adapters: how to read an attention that the general routes do not see, or see in other axes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from workbench.captures.by_class import ByClass, load_families
from workbench.captures.records import Call
from workbench.core.errors import InputError
from workbench.core.plugins import OURS, Plugin, load_plugins


@dataclass
class Visit:
    """One pass through a module's forward: what went in, what came out, what the routes saw meanwhile.

    ``parents`` are the visits around it, innermost first; their ``output`` is not there yet.
    """

    module: Any  # attributes of the family are read from it
    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parents: list[Visit] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    output: Any = None
    # Of our own variants: what ``attend`` returned, (output, what lies inside).
    attended: tuple[Tensor, dict[str, Any]] | None = None

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument of the forward, whether it was passed by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


class Adapter:
    """Reads the attention calls of one visit to a module of ``classes`` ("package.module.Class" paths).

    ``read`` gets the calls the routes saw inside (none, where the family writes its attention out) and
    returns those to record. It runs without gradients unless they were asked for, and must not change the
    module.
    """

    classes: ClassVar[tuple[str, ...]] = ()
    # Whether ``read`` looks at the calls that the routes saw inside; it then returns as many.
    reads_calls: ClassVar[bool] = True

    def read(self, visit: Visit) -> list[Call]:
        raise TypeError(f"{type(self).__name__} defines no read(visit)")


ADAPTERS: ByClass[Adapter] = ByClass()


def register_adapter(adapter: type[Adapter]) -> type[Adapter]:
    """Class decorator: use this adapter for its ``classes`` from now on, in place of an earlier one."""
    if isinstance(adapter.classes, str) or not adapter.classes:
        raise InputError(f"{adapter.__name__}.classes must be a tuple of 'package.module.Class' paths")
    load_families()
    for path in adapter.classes:
        ADAPTERS[path] = adapter()
    return adapter


def find_adapter(module: nn.Module) -> Adapter | None:
    """The adapter of a module's class or of a class it derives from."""
    load_plugin_families()
    return next(iter(ADAPTERS.of(module)), None)


@functools.cache
def load_plugin_families() -> None:
    """Let adapters of other packages join; those for a class that has one are refused."""
    load_families()
    owners = {path: _owner(adapter) for path, adapter in ADAPTERS.items()}

    def accept(plugin: Plugin, value: Any) -> None:
        if not isinstance(value, type) or not issubclass(value, Adapter):
            raise InputError("it is no class derived from workbench.captures.Adapter")
        clash = [path for path in value.classes if path in before and type(before[path]) is not value]
        if clash:
            raise InputError(f"{owners[clash[0]]} has an adapter for {clash[0]}")
        register_adapter(value)
        owners.update(dict.fromkeys(value.classes, plugin.origin))
        before.update({path: ADAPTERS[path] for path in value.classes})

    before = dict(ADAPTERS)
    load_plugins("workbench.families", {}, accept)
    # What a refused package registered of its own accord when it was imported goes again.
    ADAPTERS.clear()
    ADAPTERS.update(before)


def _owner(adapter: Adapter) -> str:
    package = type(adapter).__module__.partition(".")[0]
    return OURS if package == "workbench" else package


def adapted_classes() -> list[str]:
    """Class paths that have an adapter."""
    return sorted(ADAPTERS)
