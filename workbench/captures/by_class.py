"""Tables of what is known of classes of modules, by their paths; each file of `families` writes to them."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections import UserDict
from typing import TypeVar

from torch import nn

_FAMILIES = "workbench.captures.families"
Value = TypeVar("Value")


def class_path(module: nn.Module | type) -> str:
    """The full name of a module's class, e.g. "timm.models.cait.TalkingHeadAttn"; takes the class too."""
    cls = module if isinstance(module, type) else type(module)
    return f"{cls.__module__}.{cls.__qualname__}"


class ByClass(UserDict[str, Value]):
    """Values by "package.module.Class", or by "package." for all classes of a package.

    What is known of a class comes first, then what is known of the classes it derives from, then of its packages,
    innermost first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ours: dict[str, Value] = {}
        """What the files of `families` say."""
        self._found: dict[type, list[Value]] = {}
        TABLES.append(self)

    def __setitem__(self, key: str, item: Value) -> None:
        super().__setitem__(key, item)
        self._found.clear()

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._found.clear()

    def of(self, module: nn.Module | type) -> list[Value]:
        """All that is known of a module's class, the nearest first."""
        load_families()
        cls = module if isinstance(module, type) else type(module)
        if cls not in self._found:
            self._found[cls] = [self[path] for path in _paths(cls) if path in self]
        return self._found[cls]

    def is_ours(self, module: nn.Module) -> bool:
        """Whether nobody but ourselves said anything of the module's class."""
        load_families()
        return all(self.get(path) is self.ours.get(path) for path in _paths(type(module)))


TABLES: list[ByClass] = []
_LOCK = threading.RLock()
_PROGRESS = {"started": False, "done": False}


def load_families() -> None:
    """Import every file of `families`, once; what others register comes after it, and takes its place."""
    if _PROGRESS["done"]:
        return
    with _LOCK:
        if _PROGRESS["started"]:
            return  # by a family, which registers while it is imported
        _PROGRESS["started"] = True
        families = importlib.import_module(_FAMILIES)
        for found in pkgutil.iter_modules(families.__path__):
            importlib.import_module(f"{_FAMILIES}.{found.name}")
        for table in TABLES:
            table.ours = dict(table)
        _PROGRESS["done"] = True


def _paths(cls: type) -> list[str]:
    parts = cls.__module__.split(".")
    packages = [".".join(parts[:length]) + "." for length in range(len(parts), 0, -1)]
    return [*map(class_path, cls.__mro__), *packages]
