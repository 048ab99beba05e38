"""Heavy work beside the interface: one thread at a time, with progress, and a cancel that stops it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any


class Cancelled(Exception):
    """The person asked to stop, or something newer was asked for."""


class Report:
    """Progress of a running job, and the request to stop it.

    ``tell(text, share)`` says what is done and which share of it (0 to 1, or None where nobody knows).
    """

    def __init__(self, tell: Callable[[str, float | None], None] = lambda text, share: None) -> None:
        self._tell = tell
        self._stop = threading.Event()
        self._text = ""

    def __call__(self, text: str, share: float | None = None) -> None:
        """Report the current step; raise `Cancelled` once somebody asked to stop."""
        self.check()
        self._text = text
        self._tell(text, share)

    def progress(self, share: float) -> None:
        """Report the share of the current step that is done; raise `Cancelled` once somebody asked to stop."""
        self(self._text, share)

    def check(self) -> None:
        """Raise `Cancelled` once somebody asked to stop."""
        if self._stop.is_set():
            raise Cancelled

    def stop(self) -> None:
        """Ask the job to stop."""
        self._stop.set()


@contextmanager
def stoppable(report: Report) -> Generator[None]:
    """End a forward pass of any model in this thread at its next module once the job is to stop."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    here = threading.get_ident()

    def check(module: Any, arguments: Any) -> None:
        if threading.get_ident() == here:
            report.check()

    handle = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


class Worker:
    """Runs one job at a time in its own thread and returns its result to the event loop.

    A new job, and `cancel`, stop the one before: its result is dropped at once, and the thread ends at its next
    `Report` or module. Without a running event loop (a script, a test) jobs run in the calling thread.
    """

    def __init__(self) -> None:
        self._report: Report | None = None

    @property
    def busy(self) -> bool:
        """Return whether a job is running."""
        return self._report is not None

    def start(
        self,
        work: Callable[[Report], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        tell: Callable[[str, float | None], None],
    ) -> None:
        """Run ``work(report)``; then ``done(result)``, or ``failed(error)``, in the thread that called this.

        A job that was stopped calls neither.
        """
        self.cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None

        def deliver(call: Callable[..., None], *arguments: Any) -> None:
            if self._report is report:
                call(*arguments)

        def end(call: Callable[[Any], None], value: Any) -> None:
            if self._report is report:
                self._report = None
                call(value)

        def post(call: Callable[..., None], *arguments: Any) -> None:
            if loop is None:
                call(*arguments)
                return
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(call, *arguments)

        report = Report(lambda text, share: post(deliver, tell, text, share))
        self._report = report

        def run() -> None:
            try:
                with stoppable(report):
                    result = work(report)
            except Cancelled:
                return
            except Exception as error:  # whatever it is, the interface says it and stays usable
                post(end, failed, error)
            else:
                post(end, done, result)

        if loop is None:
            run()
        else:
            threading.Thread(target=run, name="workbench-explorer", daemon=True).start()

    def cancel(self) -> bool:
        """Stop the running job; return whether a job was running."""
        report, self._report = self._report, None
        if report is not None:
            report.stop()
        return report is not None
