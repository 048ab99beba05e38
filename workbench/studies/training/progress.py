"""What a run tells whoever watches it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from workbench.core.progress import progress_bars


class Report:
    """A bar where someone watches, a line per epoch where a file does."""

    def __init__(self, epochs: int, shown: bool, headline: str = "accuracy") -> None:
        self.console = Console(stderr=True, quiet=not shown, highlight=False, soft_wrap=True)
        self.epochs = epochs
        self.headline = headline
        self._bar: Progress | None = None
        self._batches = TaskID(0)

    @contextmanager
    def running(self) -> Generator[None]:
        """While the epochs run; the bar is gone afterwards, the lines stay."""
        if not self.console.is_terminal:
            yield
            return
        with progress_bars(console=self.console, transient=True) as bar:
            self._bar, self._batches = bar, bar.add_task("batches")
            yield
        self._bar = None

    def step(self, done: int, total: int) -> None:
        """`done` of the epoch's `total` batches are through."""
        if self._bar is not None:
            self._bar.update(self._batches, completed=done, total=total)

    def epoch(self, epoch: int, scores: dict[str, dict[str, float]], seconds: float) -> None:
        """One line for a finished epoch."""
        self.say(
            f"epoch {epoch:>{len(str(self.epochs))}}/{self.epochs}  train loss {scores['train']['loss']:.3f}  "
            f"test {in_words(self.headline, scores['test'][self.headline])}  {seconds:.1f} s"
        )

    def say(self, line: str) -> None:
        """A line of its own, on standard error."""
        self.console.print(line)


def in_words(metric: str, value: float) -> str:
    """A value with its name: "accuracy 97.10%", "perplexity 6.32"."""
    return f"{metric} {value:6.2%}" if metric.startswith("accuracy") else f"{metric} {value:.2f}"
