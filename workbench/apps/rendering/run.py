"""`render`: run figure notebooks, print their figures, write the gallery."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.apps.rendering.gallery import write_gallery
from workbench.apps.rendering.notebook_bars import Progress
from workbench.apps.rendering.notebooks import Notebook, find_notebooks, resolve_parameters
from workbench.apps.rendering.outputs import complete_notebook
from workbench.apps.rendering.state import REPORT, Outcome, read_report, result_key, shared_key, write_report
from workbench.core import paths
from workbench.core.children import python
from workbench.core.errors import InputError
from workbench.core.extras import require
from workbench.core.files import atomic_write, jsonable, sha256_file
from workbench.core.leftovers import sweep_leftovers
from workbench.core.store import locked, set_aside
from workbench.figures.export import chrome
from workbench.figures.export.figure_page import write_html
from workbench.figures.export.saving import (
    ALLOWED,
    DEFER,
    FONT,
    FORMATS,
    LETTERS,
    OUT,
    check_formats,
    export_job,
    keep_flaws,
)
from workbench.figures.export.static import STATIC, WarmChrome, export_static, load_figure
from workbench.figures.figure_arguments import check_arguments
from workbench.figures.theme import find_theme
from workbench.frames.provenance import PARAMETERS, dump
from workbench.models.loading import DEVICE, find_device

_DATA_SUFFIXES = (".json", ".csv", ".tex", ".figure.json", ".figure.tex")
_FEWEST = 3
"""Least number of notebooks for which forking kernels from a process with all imports saves time."""
_COMMITTED = (
    "README.md",
    "examples",
)  # files of the repository's folder `figures/` that are not part of a gallery
_STOP_SECONDS = 10
_MODULES = "modules.json"
_NAMED = 8  # files that a note names


@dataclass
class RenderReport:
    """Outcome of a render, notebook by notebook."""

    out: Path
    outcomes: list[Outcome]
    index: Path
    note: str = ""  # reason for missing static images, and foreign files in the folder

    @property
    def failed(self) -> list[Outcome]:
        """Return the notebooks that stopped, or whose static images could not all be printed."""
        return [outcome for outcome in self.outcomes if outcome.failed]

    @property
    def flaws(self) -> str:
        """List the flaws of the printed pages, one per line, below their number; "" if there are none."""
        lines = [
            f"  {name}: {flaw}"
            for outcome in self.outcomes
            for name, flaws in outcome.flaws.items()
            for flaw in flaws
        ]
        figures = sum(bool(flaws) for outcome in self.outcomes for flaws in outcome.flaws.values())
        heading = (
            f"{len(lines)} flaw{'' if len(lines) == 1 else 's'} in "
            f"{figures} printed figure{'' if figures == 1 else 's'}:"
        )
        return "\n".join([heading, *lines]) if lines else ""

    def __str__(self) -> str:
        lines = [*map(str, self.outcomes), self.note, self.flaws, f"gallery: {self.index}"]
        return "\n".join(filter(None, lines))


def render(
    names: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    preset: str = "default",
    out: str | os.PathLike[str] = "figures",
    workers: int = 1,
    formats: Sequence[str] = FORMATS,
    theme: str | None = None,
    font: str | None = None,
    letters: str | None = None,
    device: str | None = None,
    progress: bool = True,
    restart: bool = False,
) -> RenderReport:
    """Run notebooks with given parameters and collect their figures in a gallery.

    Every notebook has its own kernel; one that fails does not stop the others. Static images are printed by one warm
    Chrome as notebooks finish; without Chrome everything else is written, and the report notes it. A notebook whose
    source, parameters, local modules, package, data and results are unchanged is not run again. After an interruption
    finished figures stay.

    Args:
        names: bundled notebooks by name, or paths; all bundled ones by default.
        parameters: values for the notebooks' parameters. If notebooks are named, each must take all of them;
            if all are rendered, a parameter goes to those that take it, and at least one must.
        preset: "quick", "default" or "paper", from each notebook's own metadata; `parameters` go before it.
        out: folder of the gallery.
        workers: notebooks at a time.
        formats: some of "pdf", "svg", "png", "html"; with [] only numbers, figures and provenance are written.
        theme: "paper" or "talk"; by default ``WORKBENCH_THEME``, else "paper".
        font: a font by its name, for all figures; by default ``WORKBENCH_FONT``, else Arial.
        letters: how panel letters are written, by the first one: "(a)"; by default ``WORKBENCH_LETTERS``.
        device: device of the models, as for `workbench.load`, passed on as ``WORKBENCH_DEVICE`` and to notebooks with a
            parameter of that name.
        progress: show the progress: per notebook and cell in a terminal, one line per notebook elsewhere.
        restart: start over in an empty folder; the old content is moved aside, to ``OUT.before-1``.

    Raises:
        InputError, UnknownName: before anything runs, for an unknown notebook, parameter, preset, format, theme or
            device, or a value of the wrong kind.
        MissingResource: the folder cannot be written, or this machine has no such device.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; at least one notebook runs at a time")
    notebooks = find_notebooks(names)
    wanted = check_formats(formats)
    check_arguments(font=font, letters=letters)
    style = {"WORKBENCH_THEME": find_theme(theme).name} | {
        name: given
        for name, value in ((FONT, font), (LETTERS, letters))
        if (given := os.environ.get(name) if value is None else value) is not None
    }
    values = resolve_parameters(notebooks, parameters or {}, preset, named=names is not None)
    if device is not None:
        device = str(find_device(device))
        for notebook in notebooks:
            if "device" in notebook.parameters and "device" not in (parameters or {}):
                values[notebook.name]["device"] = device
    folder = Path(
        os.path.realpath(os.path.expanduser(out))
    )  # also for a link to itself, where resolve() fails
    require("rendering notebooks", "papermill", "ipykernel")
    _check_folder(folder)
    with locked(folder, "render"):
        if restart:
            set_aside(folder, stays=_COMMITTED)
        (folder / "notebooks").mkdir(exist_ok=True)
        sweep_leftovers(folder / "notebooks", "partial")
        return _Render(folder, wanted, style, preset, workers, device, progress).run(notebooks, values)


def _check_folder(folder: Path) -> None:
    """Raise before the work if the folder cannot be written."""
    atomic_write(folder / ".writable", b"x" * 65536).unlink()


class _Render:
    """One call of `render`."""

    def __init__(
        self,
        out: Path,
        formats: list[str],
        style: Mapping[str, str],
        preset: str,
        workers: int,
        device: str | None,
        progress: bool,
    ) -> None:
        self.out, self.formats, self.style, self.preset, self.workers = out, formats, style, preset, workers
        self.device = device or os.environ.get(DEVICE) or None
        self.show = Progress(progress)
        self.browser: WarmChrome | None = None
        self.started = NotebookProcesses()
        self.note = ""
        self.processes: dict[str, NotebookProcess] = {}
        self.stopping = threading.Event()
        self.starting = threading.Lock()  # no process may start while all are stopped
        report = read_report(out)
        self.reporting = report is not None  # a foreign report.json is left alone
        self.earlier = report or {}
        self.unrecorded: set[str] = set()  # notebooks that have ended

    def run(self, notebooks: list[Notebook], values: Mapping[str, dict[str, Any]]) -> RenderReport:
        shared = shared_key(self.style, self.preset)
        if self.device is not None:
            shared["device"] = self.device
        outcomes = {
            item.name: Outcome(
                item.name,
                item.title,
                parameters=values[item.name],
                key=result_key(item, values[item.name], shared),
            )
            for item in notebooks
        }
        from workbench.apps.rendering.kernels import POSSIBLE  # jupyter_client is not in the core

        waiting: dict[Future[Outcome], Notebook] = {}
        pool = ThreadPoolExecutor(self.workers)
        try:
            with self.show.running([(item.name, item.cells) for item in notebooks]):
                stale = []
                for item in notebooks:
                    outcome = outcomes[item.name]
                    if self._unchanged(outcome):
                        self._finish(outcome)
                    else:
                        stale.append(item)
                self.started = NotebookProcesses(
                    environment=self._threads(), forked=POSSIBLE and len(stale) >= _FEWEST
                )
                for item in self._longest_first(stale):
                    waiting[pool.submit(self._run_notebook, item, outcomes[item.name])] = item
                if stale:
                    self._warm_up()
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        del waiting[future]
                        self._finish(future.result())
        except BaseException:
            self._stop_processes()
            pool.shutdown(cancel_futures=True)  # the outcome of each notebook is known then
            for outcome in outcomes.values():
                if outcome.status == "waiting":
                    outcome.status = "interrupted"
            report = self._close(list(outcomes.values()))
            self.show.say(str(report))
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            self.started.close()
            if self.browser is not None:
                self.browser.close()
        report = self._close(list(outcomes.values()))
        for message in filter(None, (report.note, report.flaws)):
            self.show.say(message)
        self.show.say(f"{len(report.outcomes) - len(report.failed)} of {len(report.outcomes)} notebooks done")
        self.show.say(str(report.index))
        return report

    # ------------------------------------------------------------------------------------------- one notebook

    def _longest_first(self, notebooks: Sequence[Notebook]) -> list[Notebook]:
        """Sort notebooks by their time in the last report, longest and new ones first."""
        seconds = {name: outcome.seconds for name, outcome in self.earlier.items()}
        return sorted(notebooks, key=lambda item: -seconds.get(item.name, math.inf))

    def _unchanged(self, outcome: Outcome) -> bool:
        """Return whether the last render's results are valid, and reuse them if so."""
        earlier = self.earlier.get(outcome.name)
        if earlier is None or earlier.key != outcome.key or earlier.status not in ("done", "unchanged"):
            return False
        if not (self.out / "notebooks" / f"{outcome.name}.ipynb").is_file():
            return False
        for name, content in earlier.figures.items():
            if not all((self.out / f"{name}{suffix}").is_file() for suffix in _DATA_SUFFIXES):
                return False
            if sha256_file(self.out / f"{name}.json") != content:
                return False  # another notebook, or a person, has saved a figure of this name since
        for path, content in earlier.modules.items():
            if not (self.out / path).is_file() or sha256_file(self.out / path) != content:
                return False
        outcome.status, outcome.seconds = "unchanged", earlier.seconds
        outcome.figures, outcome.modules = earlier.figures, earlier.modules
        return True

    def _run_notebook(self, notebook: Notebook, outcome: Outcome) -> Outcome:
        from workbench.apps.rendering.kernels import short_folder

        with tempfile.TemporaryDirectory(prefix="workbench-", dir=short_folder()) as scratch:
            queue = Path(scratch) / "figures.jsonl"
            self._execute(notebook, outcome, Path(scratch), queue)
            if (modules := Path(scratch) / _MODULES).is_file():
                hashes = json.loads(modules.read_text(encoding="utf-8"))
                outcome.modules = {
                    os.path.relpath(path, self.out): content for path, content in hashes.items()
                }
            if queue.is_file():
                for line in queue.read_text(encoding="utf-8").splitlines():
                    saved = Path(json.loads(line)["path"])
                    outcome.figures[saved.stem] = sha256_file(saved)
        self.unrecorded.add(outcome.name)
        return outcome

    def _execute(self, notebook: Notebook, outcome: Outcome, scratch: Path, queue: Path) -> None:
        values = outcome.parameters
        passed = {**values, **({"out": str(self.out)} if "out" in notebook.parameters else {})}
        job = {
            "notebook": str(notebook.path),
            "executed": str(self.out / "notebooks" / f"{notebook.name}.ipynb"),
            "parameters": passed,
            "cwd": os.getcwd(),
            "environment": self._environment(notebook, values, scratch, queue),
        }
        started = time.perf_counter()
        with self.starting:
            if self.stopping.is_set():
                outcome.status = "interrupted"
                return
            process = self.processes[notebook.name] = self.started.take()
        self.show.cell(notebook.name, 0)
        answer: dict[str, Any] = {}
        for event in process.run(job):
            if "status" in event:
                answer = event
            else:
                self.show.cell(notebook.name, event["cell"])
        del self.processes[notebook.name]
        if self.stopping.is_set():
            answer = {"status": "interrupted", "error": "KeyboardInterrupt", "ended": True}
        if "ended" in answer:
            process.end()
        else:
            self.started.give_back(process)
        outcome.status = answer["status"]
        outcome.cell, outcome.error = answer.get("cell"), answer.get("error", "")
        outcome.message = answer.get("message", "")
        outcome.seconds = time.perf_counter() - started

    def _environment(
        self, notebook: Notebook, values: Mapping[str, Any], scratch: Path, queue: Path
    ) -> dict[str, str]:
        from workbench.apps.rendering.kernels import HELPERS, MODULES, write_kernel

        write_kernel(scratch / "jupyter", forked=self.started.forked)
        unbundled = notebook.path not in {path.resolve() for path in paths.bundled_notebooks().values()}
        facts = {
            "name": notebook.name,
            "sha256": notebook.sha256,
            "parameters": jsonable(values),
            **({"path": os.path.relpath(notebook.path, self.out)} if unbundled else {}),
            **({"device": self.device} if self.device else {}),
        }
        return {
            **self._threads(),
            # after an interruption, hours of work continue within a notebook, analysis by analysis
            **({"WORKBENCH_CACHE_RESULTS": "1"} if self.preset == "paper" else {}),
            **os.environ,
            HELPERS: str(notebook.path.parent),
            MODULES: str(scratch / _MODULES),
            "JUPYTER_PATH": str(scratch / "jupyter"),
            "JUPYTER_RUNTIME_DIR": str(scratch / "run"),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "WORKBENCH_NOTEBOOK": dump(facts),
            PARAMETERS: dump(notebook.filled(values)),
            "WORKBENCH_PRESET": self.preset,
            **self.style,
            **({DEVICE: self.device} if self.device else {}),
            OUT: str(self.out),
            DEFER: str(queue),
            ALLOWED: ",".join(self.formats),
        }

    def _threads(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.workers))}

    def _stop_processes(self) -> None:
        with self.starting:
            self.stopping.set()
            running = list(self.processes.values())
        for process in running:
            process.child.terminate()
        until = time.monotonic() + _STOP_SECONDS
        for process in running:
            process.end(max(0.1, until - time.monotonic()))

    # ---------------------------------------------------------------------------------------------- static images

    def _warm_up(self) -> None:
        """Start Chrome while the first notebook runs; remember why if there is none."""
        if self.browser is not None or self.note or not set(self.formats) & set(STATIC):
            return
        if chrome.find_chrome() is None:
            self.note = f"no PDF, SVG or PNG was written: {chrome.missing_chrome()}"
            return
        self.browser = WarmChrome()

    def _finish(self, outcome: Outcome) -> None:
        if outcome.status in ("done", "unchanged", "failed"):
            for name in outcome.figures:
                self._print_figure(name, outcome)
        executed = self.out / "notebooks" / f"{outcome.name}.ipynb"
        if outcome.status != "interrupted" and executed.is_file():
            complete_notebook(executed, outcome.figures, self.out)
        self._record(outcome)
        self.show.finished(outcome)

    def _print_figure(self, name: str, outcome: Outcome) -> None:
        path = self.out / f"{name}.json"
        provenance = json.loads(path.read_text(encoding="utf-8"))
        missing = [item for item in self.formats if not (self.out / f"{name}.{item}").is_file()]
        if "html" in missing and outcome.status == "unchanged":
            write_html(path.with_suffix(".html"), load_figure(self.out / f"{name}.figure.json"), provenance)
        static = [item for item in missing if item in STATIC]
        outcome.flaws[name] = provenance["figure"].get("flaws") or []
        if not static:
            return
        self._warm_up()
        if self.browser is None:
            return
        (result,) = export_static([export_job(path, provenance, static)], self.browser)
        if result.flaws is not None:
            keep_flaws(path, provenance, result.flaws)
            outcome.figures[name] = sha256_file(path)
            outcome.flaws[name] = result.flaws
        outcome.exports |= {f"{name}.{item}": why for item, why in result.failures.items()}

    # ------------------------------------------------------------------------------------------------ report

    def _record(self, outcome: Outcome) -> None:
        self.earlier[outcome.name] = outcome
        self.unrecorded.discard(outcome.name)
        if self.reporting:
            write_report(self.out, self.earlier)

    def _close(self, outcomes: list[Outcome]) -> RenderReport:
        for outcome in outcomes:
            # A notebook that ended just before an interrupt has its results; the next render prints its static images.
            ended = outcome.name in self.unrecorded and outcome.status != "interrupted"
            if ended or (outcome.status == "interrupted" and outcome.name not in self.earlier):
                self._record(outcome)
        index, unknown = write_gallery(self.out, self.earlier)
        notes = [self.note, _unknown_note(unknown)]
        return RenderReport(self.out, outcomes, index, "\n".join(filter(None, notes)))


def _unknown_note(names: Sequence[str]) -> str:
    if not names:
        return ""
    few = ", ".join(map(repr, names[:_NAMED])) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )
    lost = "; without a report of ours the next render runs every notebook again" if REPORT in names else ""
    return f"not replaced, since no render wrote it: {few}{lost}"


class NotebookProcess:
    """A process that runs notebooks one after another; `process.py` is its other end."""

    def __init__(self, environment: dict[str, str], forked: bool) -> None:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (read when it has died)
        self.child = subprocess.Popen(
            python("-m", "workbench.apps.rendering.process", *(["--forked"] if forked else [])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches us, and we stop the notebooks in good order
        )

    def run(self, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the started cells, as ``{"cell": 3}``, and last the outcome, even if the process dies."""
        assert self.child.stdin is not None  # pipes were asked for
        assert self.child.stdout is not None
        with suppress(
            BrokenPipeError, ValueError
        ):  # it is dead, and its status says why, or all are being ended
            print(json.dumps(job), file=self.child.stdin, flush=True)
        for line in self.child.stdout:
            event = json.loads(line)
            yield event
            if "status" in event:
                return
        status = self.child.wait()
        self.errors.seek(0)
        yield {**_died(status, self.errors.read()), "ended": True}

    def end(self, seconds: float = _STOP_SECONDS) -> None:
        """Let the process end, and kill it after `seconds`."""
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):  # unsent input does not matter
            self.child.stdin.close()
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class NotebookProcesses:
    """A pool of the processes that a render has started and that wait for a notebook."""

    def __init__(self, environment: Mapping[str, str] | None = None, forked: bool = False) -> None:
        self.environment, self.forked = environment or {}, forked
        self.idle: list[NotebookProcess] = []

    def take(self) -> NotebookProcess:
        """Return a process for a notebook."""
        return (
            self.idle.pop() if self.idle else NotebookProcess({**self.environment, **os.environ}, self.forked)
        )

    def give_back(self, process: NotebookProcess) -> None:
        """Return a process to the pool."""
        self.idle.append(process)

    def close(self) -> None:
        """End the processes of the pool."""
        while self.idle:
            self.idle.pop().end()


def _died(status: int, errors: str) -> dict[str, Any]:
    lines = errors.strip().splitlines()
    why = lines[-1] if lines else "it printed nothing"
    if status == -signal.SIGKILL:
        why = "it was killed, most likely because memory ran out; try fewer inputs (-p n 5) or fewer workers (-j 1)"
    return {"status": "failed", "error": f"the notebook's process ended with status {status}", "message": why}
