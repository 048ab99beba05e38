"""Plug-ins through entry points: analyses, metrics, nulls, families, variants and commands.

A package names them in its ``pyproject.toml``, under a group of `GROUPS`; docs/extending.md works an example. They
are loaded when a name is asked for that is not ours, or when all are listed. One that cannot be loaded is named in a
warning, and the others stay.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from workbench.core.errors import InputError

Entry = TypeVar("Entry")

GROUPS = {
    "workbench.analyses": "analysis",
    "workbench.metrics": "metric",
    "workbench.nulls": "null",
    "workbench.families": "family",
    "workbench.variants": "attention variant",
    "workbench.commands": "command",
}
"""Groups of entry points, with the word for one entry of each."""
OURS = "the workbench"


@dataclass(frozen=True)
class Plugin:
    """One entry of another package: ``origin`` is the package with its version, ``problem`` why it is left out."""

    group: str
    name: str
    target: str
    origin: str
    problem: str = ""

    @property
    def title(self) -> str:
        """Return the name used in messages: "analysis 'speckle' of speckles 0.3 (speckles.analyses:SPECKLE)"."""
        return f"{GROUPS[self.group]} {self.name!r} of {self.origin} ({self.target})"


_MET: dict[str, list[Plugin]] = {}


def plugins() -> list[Plugin]:
    """Return the plug-ins of all groups that were loaded so far, with the problem of each that was left out."""
    return [plugin for group in GROUPS for plugin in _MET.get(group, [])]


def load_plugins(group: str, taken: Mapping[str, str], accept: Callable[[Plugin, Any], None]) -> None:
    """Load every entry of a group and hand it to ``accept``, which registers it or raises `InputError` with the reason.

    ``taken`` maps names in use to their owners. Two packages that offer one name are both refused, since the choice
    would be arbitrary. A warning names each plug-in that is left out.
    """
    candidates = []
    for entry in importlib.metadata.entry_points(group=group):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"
        candidates.append((Plugin(group, entry.name, entry.value, origin), entry))
    candidates.sort(key=lambda pair: (pair[0].name, pair[0].origin))
    offered: dict[str, list[str]] = {}
    for plugin, _ in candidates:
        offered.setdefault(plugin.name, []).append(plugin.origin)
    _MET[group] = []
    for plugin, entry in candidates:
        others = [origin for origin in offered[plugin.name] if origin != plugin.origin]
        if plugin.name in taken:
            problem = f"{taken[plugin.name]} has one of this name; it must be called otherwise"
        elif others:
            problem = f"{' and '.join(others)} has one of this name too; uninstall one of them"
        else:
            problem = _problem(plugin, entry, accept)
        if problem:
            warnings.warn(f"plug-in left out: {plugin.title}: {problem}", stacklevel=3)
        _MET[group].append(replace(plugin, problem=problem))


def _problem(
    plugin: Plugin, entry: importlib.metadata.EntryPoint, accept: Callable[[Plugin, Any], None]
) -> str:
    try:
        accept(plugin, entry.load())
    except InputError as error:
        return str(error)
    except Exception as error:  # other people's code: whatever it raises must not stop ours
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


LOCK = threading.RLock()  # one for all tables: to complete one may mean to look into another


class Registry(MutableMapping[str, Entry]):
    """A table of ours that plug-ins of one group join when a name is not ours, or all are listed.

    An entry of ours may be a text, "package.module:NAME", which is imported on first use. ``check`` returns the entry
    to register, or raises `InputError` naming its problem.
    """

    def __init__(
        self, entries: Mapping[str, Entry | str], group: str, check: Callable[[str, Any], Entry]
    ) -> None:
        self._own = dict(entries)
        self._entries = dict(entries)
        self._group, self._check = group, check
        self._complete = False

    def complete(self) -> None:
        """Load the plug-ins, once."""
        with LOCK:
            if not self._complete:
                self._complete = (
                    True  # a plug-in that reads the table while it is loaded sees what is there so far
                )
                load_plugins(self._group, dict.fromkeys(self._entries, OURS), self._accept)

    def is_ours(self, name: str) -> bool:
        """Return whether the entry is one of ours: its code is part of this package."""
        return name in self._own and self[name] is self._own[name]

    def _accept(self, plugin: Plugin, value: Any) -> None:
        """Register one entry, or a mapping of several by their names."""
        entries = value if isinstance(value, Mapping) else {plugin.name: value}
        taken = [name for name in entries if name in self._entries]
        if taken:
            raise InputError(f"{', '.join(taken)} is there already; it must be called otherwise")
        self._entries |= {name: self._check(name, entry) for name, entry in entries.items()}

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            self.complete()
        entry = self._entries[name]
        if not isinstance(entry, str):
            return entry
        module, _, attribute = entry.partition(":")
        imported = getattr(importlib.import_module(module), attribute)
        self._own[name] = self[name] = imported
        return imported

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self.complete()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self.complete()
        return iter(self._entries)

    def __len__(self) -> int:
        self.complete()
        return len(self._entries)

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __copy__(self) -> dict[str, Entry]:
        return dict(self)


def instance_of(kind: type[Entry]) -> Callable[[str, Any], Entry]:
    """Accept an entry of a class; where that has a name, it must be the name of the entry point."""

    def check(name: str, value: Any) -> Entry:
        if not isinstance(value, kind):
            raise InputError(f"it is a {type(value).__name__}; give a workbench {kind.__name__}")
        if getattr(value, "name", name) != name:
            raise InputError(f"it calls itself {value.name!r}; give the entry point that name")
        return value

    return check
