"""Progress bars in the terminal, in one style."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PATIENCE = 2.0
"""Seconds of expected work that show a bar."""


def progress_bars(
    *,
    visible: bool = True,
    transient: bool = False,
    state: bool = False,
    console: Console | None = None,
    remembered: float = 30.0,
) -> Progress:
    """Return rich's progress bars: title, count and total, time elapsed and time left.

    On standard error unless a ``console`` is given; ``transient`` bars disappear afterwards. ``state`` shows the field
    of that name instead of the counts. The time left is estimated from the last ``remembered`` seconds.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}") if state else MofNCompleteColumn(),
        TimeElapsedColumn(),
        *(() if state else (TimeRemainingColumn(),)),
        console=console or Console(stderr=True),
        transient=transient,
        disable=not visible,
        speed_estimate_period=remembered,
    )


@contextmanager
def bar_of_fraction(title: str, total: int) -> Generator[Callable[[float], None]]:
    """Yield a function that takes the completed fraction; a bar appears once the work turns out to be long."""
    bars = progress_bars()
    task = bars.add_task(title, total=total)
    started = time.perf_counter()

    def reached(done: float) -> None:
        bars.update(task, completed=round(done * total, 2))
        if not bars.live.is_started and time.perf_counter() - started > PATIENCE * done:
            bars.start()

    try:
        yield reached
    finally:
        if bars.live.is_started:
            bars.stop()
