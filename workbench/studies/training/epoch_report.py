"""Report the progress of a run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from workbench.core.progress import progress_bars


class Report:
    """A progress bar on a terminal, one line per epoch elsewhere."""

    def __init__(self, epochs: int, visible: bool, headline: str = "accuracy") -> None:
        self.console = Console(stderr=True, quiet=not visible, highlight=False, soft_wrap=True)
        self.epochs = epochs
        self.headline = headline
        self._bar: Progress | None = None
        self._batches = TaskID(0)

    @contextmanager
    def running(self) -> Generator[None]:
        """Show the bar while the epochs run; only the lines remain afterwards."""
        if not self.console.is_terminal:
            yield
            return
        with progress_bars(console=self.console, transient=True) as bar:
            self._bar, self._batches = bar, bar.add_task("batches")
            yield
        self._bar = None

    def step(self, done: int, total: int) -> None:
        """Update the bar: `done` of the epoch's `total` batches are complete."""
        if self._bar is not None:
            self._bar.update(self._batches, completed=done, total=total)

    def epoch(self, epoch: int, scores: dict[str, dict[str, float]], seconds: float) -> None:
        """Print one line for a finished epoch."""
        self.say(
            f"epoch {epoch:>{len(str(self.epochs))}}/{self.epochs}  train loss {scores['train']['loss']:.3f}  "
            f"test {in_words(self.headline, scores['test'][self.headline])}  {seconds:.1f} s"
        )

    def say(self, line: str) -> None:
        """Print a line on standard error."""
        self.console.print(line)


def in_words(metric: str, value: float) -> str:
    """Format a value with its name: "accuracy 97.10%", "perplexity 6.32"."""
    return f"{metric} {value:6.2%}" if metric.startswith("accuracy") else f"{metric} {value:.2f}"
