"""Progress display of a render."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from workbench.apps.rendering.state import Outcome


class Progress:
    """A bar per notebook in a terminal, a line per finished notebook elsewhere; nothing if not ``wanted``."""

    def __init__(self, wanted: bool) -> None:
        from rich.console import Console

        self.wanted = wanted
        self.console = Console(soft_wrap=True, highlight=False, markup=False)
        self.bars: Any = None
        self.tasks: dict[str, Any] = {}
        self.cells: dict[str, int] = {}

    @contextmanager
    def running(self, notebooks: list[tuple[str, int]]) -> Generator[None]:
        """Show the bars while notebooks run."""
        if not (self.wanted and self.console.is_terminal):
            yield
            return
        from workbench.core.progress import progress_bars

        with progress_bars(console=self.console, state=True) as self.bars:
            for name, cells in notebooks:
                self.cells[name] = cells
                self.tasks[name] = self.bars.add_task(name, total=max(cells, 1), state="waiting", start=False)
            yield
        self.bars = None

    def cell(self, name: str, number: int) -> None:
        """Update the bar of a notebook that has reached a cell."""
        if self.bars is not None:
            task = self.tasks[name]
            if number == 0:
                self.bars.start_task(task)
            # papermill adds a cell with the injected parameters
            state = "starting" if number == 0 else f"cell {number} of {max(self.cells[name], number)}"
            self.bars.update(task, completed=number, state=state)

    def finished(self, outcome: Outcome) -> None:
        """Show the outcome of a notebook whose exports are done."""
        if self.bars is not None:
            task = self.tasks[outcome.name]
            self.bars.update(task, completed=self.cells[outcome.name], state=outcome.status)
            self.bars.stop_task(task)
            if outcome.failed:
                self.bars.console.print(str(outcome))
        else:
            self.say(str(outcome))

    def say(self, text: str) -> None:
        """Print a line to the console of the bars."""
        if self.wanted:
            self.console.print(text)
