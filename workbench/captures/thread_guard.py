"""One capture at a time in a process, which records only passes in its thread.

A capture puts hooks on modules, replaces functions of libraries, and switches flags of the process (torch's fast path,
the compiler's stance, the cache of transformers). ``CAPTURING`` keeps captures from putting back what another one
needs, and other threads that run the same model call the originals (`in_this_thread`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

CAPTURING = threading.RLock()
"""Held by a capture while its model runs."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


def in_this_thread(ours: Callable[..., Any], others: Callable[..., Any] = _nothing) -> Callable[..., Any]:
    """Return a function that calls ``ours`` in the thread that made it, and ``others`` in every other thread."""
    thread = threading.get_ident()

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs) if threading.get_ident() == thread else others(*args, **kwargs)

    return dispatch


@contextmanager
def replaced(owner: Any, name: str, ours: Callable[..., Any]) -> Generator[None]:
    """Replace an attribute for this thread; other threads keep the original."""
    before, inherited = getattr(owner, name), name not in vars(owner)
    setattr(owner, name, in_this_thread(ours, before))
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
