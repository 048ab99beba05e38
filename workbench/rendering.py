"""`render`: run figure notebooks, print their figures, write the gallery; `reproduce`: draw one figure again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench import chrome, paths
from workbench.errors import InputError
from workbench.exporting import ALLOWED, DEFER, FORMATS, OUT, check_formats, export_job, write_html
from workbench.figures.theme import find_theme
from workbench.gallery import write_gallery
from workbench.notebooks import Notebook, find_notebooks, read_parameters, resolve_parameters
from workbench.provenance import dump, jsonable, read_provenance, sha256_file
from workbench.render_progress import Progress
from workbench.render_state import Outcome, read_report, result_key, shared_key, write_report
from workbench.results import atomic_write
from workbench.static_export import STATIC, WarmChrome, export_static, load_figure

__all__ = ["Outcome", "RenderReport", "Reproduction", "read_parameters", "render", "reproduce"]

_DATA_SUFFIXES = (".json", ".csv", ".tex", ".figure.json")
_STOP_SECONDS = 10


@dataclass
class RenderReport:
    """Outcome of a render, notebook by notebook."""

    out: Path
    outcomes: list[Outcome]
    index: Path
    note: str = ""  # why there are no static pictures, where this machine has no Chrome

    @property
    def failed(self) -> list[Outcome]:
        """Notebooks that stopped, or whose pictures could not all be printed."""
        return [outcome for outcome in self.outcomes if outcome.failed]

    def __str__(self) -> str:
        lines = [str(outcome) for outcome in self.outcomes]
        return "\n".join([*lines, *([self.note] if self.note else []), f"gallery: {self.index}"])


def render(
    names: Sequence[str | os.PathLike[str]] | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    preset: str = "default",
    out: str | os.PathLike[str] = "figures",
    jobs: int = 1,
    formats: Sequence[str] = FORMATS,
    theme: str = "paper",
    progress: bool = True,
    force: bool = False,
) -> RenderReport:
    """Run notebooks with given parameters and collect their figures in a gallery.

    Every notebook runs in a process of its own; one that fails does not stop the others. Pictures are printed by
    one Chrome that stays warm, as notebooks finish; without Chrome everything else is written, and the report
    says so. A notebook whose source, parameters, package, data and results are unchanged is not run again.
    Where the work is interrupted, finished figures stay.

    Args:
        names: bundled notebooks by name, or paths; all bundled ones by default.
        parameters: values for the notebooks' parameters. Where notebooks are named, each must take all of them;
            where all are rendered, a parameter goes to those that take it, and at least one must.
        preset: "quick", "default" or "paper", from each notebook's own metadata; `parameters` go before it.
        out: folder of the gallery.
        jobs: notebooks at a time.
        formats: some of "pdf", "svg", "png", "html".
        theme: "paper" or "talk".
        progress: show what is going on: per notebook and cell in a terminal, one line per notebook elsewhere.
        force: run also what is unchanged.

    Raises:
        InputError, UnknownName: before anything runs, for an unknown notebook, parameter, preset, format or theme,
            or a value of the wrong kind.
        MissingResource: the folder cannot be written.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; at least one notebook runs at a time")
    notebooks = find_notebooks(names)
    wanted = check_formats(tuple(formats))
    find_theme(theme)
    values = resolve_parameters(notebooks, parameters or {}, preset, named=names is not None)
    folder = Path(out).resolve()
    _check_folder(folder)
    work = _Render(folder, wanted, theme, preset, jobs, progress)
    return work.run(notebooks, values, force)


def _check_folder(folder: Path) -> None:
    """A folder that cannot be written is better found out before an hour's work than after it."""
    atomic_write(folder / "notebooks" / ".writable", lambda handle: handle.write(b"x" * 65536)).unlink()


class _Render:
    """One call of `render`."""

    def __init__(self, out: Path, formats: list[str], theme: str, preset: str, jobs: int, progress: bool) -> None:
        self.out, self.formats, self.theme, self.preset, self.jobs = out, formats, theme, preset, jobs
        self.show = Progress(progress)
        self.browser: WarmChrome | None = None
        self.note = ""
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.stopping = threading.Event()
        self.earlier = read_report(out)

    def run(self, notebooks: list[Notebook], values: Mapping[str, dict[str, Any]], force: bool) -> RenderReport:
        shared = shared_key(self.theme, self.preset)
        outcomes = {
            item.name: Outcome(
                item.name, item.title, parameters=values[item.name], key=result_key(item, values[item.name], shared)
            )
            for item in notebooks
        }
        waiting: dict[Future[Outcome], Notebook] = {}
        pool = ThreadPoolExecutor(self.jobs)
        try:
            with self.show.running([(item.name, item.cells) for item in notebooks]):
                stale = []
                for item in notebooks:
                    outcome = outcomes[item.name]
                    if not force and self._unchanged(outcome):
                        self._finish(outcome)
                    else:
                        stale.append(item)
                for item in stale:
                    waiting[pool.submit(self._run_notebook, item, outcomes[item.name])] = item
                if stale:
                    self._warm_up()
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        del waiting[future]
                        self._finish(future.result())
        except BaseException:
            self.stopping.set()
            self._stop_processes()
            for outcome in outcomes.values():
                if outcome.status == "waiting":
                    outcome.status = "interrupted"
            report = self._close(list(outcomes.values()))
            self.show.say(str(report))
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            if self.browser is not None:
                self.browser.close()
        report = self._close(list(outcomes.values()))
        if report.note:
            self.show.say(report.note)
        self.show.say(f"{len(report.outcomes) - len(report.failed)} of {len(report.outcomes)} notebooks done")
        self.show.say(str(report.index))
        return report

    # ------------------------------------------------------------------------------------------- one notebook

    def _unchanged(self, outcome: Outcome) -> bool:
        """Whether the last render's results still stand; takes them over if so."""
        held = self.earlier.get(outcome.name)
        if not held or held.get("key") != outcome.key or held.get("status") not in ("done", "unchanged"):
            return False
        if not (self.out / "notebooks" / f"{outcome.name}.ipynb").is_file():
            return False
        for name, content in held["figures"].items():
            if not all((self.out / f"{name}{suffix}").is_file() for suffix in _DATA_SUFFIXES):
                return False
            if sha256_file(self.out / f"{name}.json") != content:
                return False  # another notebook, or a person, has saved a figure of this name since
        outcome.status, outcome.figures, outcome.seconds = "unchanged", held["figures"], held["seconds"]
        return True

    def _run_notebook(self, notebook: Notebook, outcome: Outcome) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="workbench-", dir=_short_folder()) as scratch:
            queue = Path(scratch) / "figures.jsonl"
            self._execute(notebook, outcome, Path(scratch), queue)
            if queue.is_file():
                for line in queue.read_text(encoding="utf-8").splitlines():
                    saved = Path(json.loads(line)["path"])
                    outcome.figures[saved.stem] = sha256_file(saved)
        return outcome

    def _execute(self, notebook: Notebook, outcome: Outcome, scratch: Path, queue: Path) -> None:
        if self.stopping.is_set():
            outcome.status = "interrupted"
            return
        values = outcome.parameters
        passed = {**values, **({"out": str(self.out)} if "out" in notebook.parameters else {})}
        job = {
            "notebook": str(notebook.path),
            "executed": str(self.out / "notebooks" / f"{notebook.name}.ipynb"),
            "parameters": passed,
            "cwd": os.getcwd(),
        }
        (scratch / "job.json").write_text(json.dumps(job), encoding="utf-8")
        started = time.perf_counter()
        with open(scratch / "errors.txt", "w+", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "workbench.notebook_process", str(scratch / "job.json")],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment(notebook, values, scratch, queue),
                start_new_session=True,  # Ctrl-C reaches us, and we stop the notebooks in good order
            )
            self.processes[notebook.name] = process
            self.show.cell(notebook.name, 0)
            answer: dict[str, Any] = {}
            assert process.stdout is not None
            for line in process.stdout:
                event = _event(line)
                if "status" in event:
                    answer = event
                elif "cell" in event:
                    self.show.cell(notebook.name, event["cell"])
            status = process.wait()
            del self.processes[notebook.name]
            if not answer:
                errors.seek(0)
                answer = _died(status, errors.read())
        outcome.status = "interrupted" if self.stopping.is_set() else answer["status"]
        outcome.cell, outcome.error = answer.get("cell"), answer.get("error", "")
        outcome.message = answer.get("message", "")
        outcome.seconds = time.perf_counter() - started

    def _environment(
        self, notebook: Notebook, values: Mapping[str, Any], scratch: Path, queue: Path
    ) -> dict[str, str]:
        from ipykernel.kernelspec import write_kernel_spec

        # The kernel is this Python, whatever kernel of the same name the user has installed elsewhere.
        write_kernel_spec(scratch / "jupyter" / "kernels" / "python3")
        own = notebook.path.parent != paths.notebooks_dir().resolve()
        told = {
            "name": notebook.name,
            "sha256": notebook.sha256,
            "parameters": jsonable(values),
            **({"path": str(notebook.path)} if own else {}),
        }
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        return {
            "OMP_NUM_THREADS": threads,
            **os.environ,
            "JUPYTER_PATH": str(scratch / "jupyter"),
            "JUPYTER_RUNTIME_DIR": str(scratch / "run"),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "WORKBENCH_NOTEBOOK": dump(told),
            "WORKBENCH_PRESET": self.preset,
            "WORKBENCH_THEME": self.theme,
            OUT: str(self.out),
            DEFER: str(queue),
            ALLOWED: ",".join(self.formats),
        }

    def _stop_processes(self) -> None:
        running = list(self.processes.values())
        for process in running:
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        for process in running:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    # ---------------------------------------------------------------------------------------------- pictures

    def _warm_up(self) -> None:
        """Start Chrome while the first notebook runs; without one, remember why."""
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
        self._record(outcome)
        self.show.finished(outcome)

    def _print_figure(self, name: str, outcome: Outcome) -> None:
        path = self.out / f"{name}.json"
        provenance = json.loads(path.read_text(encoding="utf-8"))
        missing = [item for item in self.formats if not (self.out / f"{name}.{item}").is_file()]
        if "html" in missing and outcome.status == "unchanged":
            write_html(path.with_suffix(".html"), load_figure(self.out / f"{name}.figure.json"), provenance)
        static = [item for item in missing if item in STATIC]
        if not static:
            return
        self._warm_up()
        if self.browser is None:
            return
        (result,) = export_static([export_job(path, provenance, static)], self.browser)
        outcome.exports |= {f"{name}.{item}": why for item, why in result.failures.items()}

    # ------------------------------------------------------------------------------------------------ report

    def _record(self, outcome: Outcome) -> None:
        self.earlier[outcome.name] = asdict(outcome)
        write_report(self.out, self.earlier)

    def _close(self, outcomes: list[Outcome]) -> RenderReport:
        for outcome in outcomes:
            if outcome.status == "interrupted" and outcome.name not in self.earlier:
                self._record(outcome)
        return RenderReport(self.out, outcomes, write_gallery(self.out), self.note)


def _event(line: str) -> dict[str, Any]:
    """A line of the notebook process; what a library printed there by itself is passed over."""
    try:
        held = json.loads(line)
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


def _died(status: int, errors: str) -> dict[str, Any]:
    lines = errors.strip().splitlines()
    why = lines[-1] if lines else "it said nothing"
    if status == -signal.SIGKILL:
        why = "it was killed, most likely because memory ran out; try fewer inputs (-p n 5) or fewer jobs (-j 1)"
    return {"status": "failed", "error": f"the notebook's process ended with status {status}", "message": why}


def _short_folder() -> str | None:
    """A folder for sockets, whose path the system limits to about 100 letters; macOS's own choice is long."""
    return "/tmp" if os.path.isdir("/tmp") and os.access("/tmp", os.W_OK) else None


# ----------------------------------------------------------------------------------------------------- reproduce


@dataclass
class Reproduction:
    """A figure drawn again, beside the first one.

    ``difference`` is the largest relative difference of the data: 0 where it is the same, None where the tables
    cannot be compared (the text then says why).
    """

    name: str
    same_data: bool
    same_figure: bool
    difference: float | None
    causes: list[str]
    compared: str = ""

    @property
    def same(self) -> bool:
        """Whether data and drawing are the same, bit for bit."""
        return self.same_data and self.same_figure

    def __str__(self) -> str:
        if self.same:
            text = f"{self.name}: the same: data and drawing are identical"
        elif self.same_data:
            text = f"{self.name}: the same data, drawn differently"
        elif self.difference is not None:
            text = f"{self.name}: different data: largest relative difference {self.difference:.3g}"
        else:
            text = f"{self.name}: different data: {self.compared}"
        return "\n".join([text, *(f"  {cause}" for cause in self.causes)])


def reproduce(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Reproduction:
    """Draw a figure again from its provenance, in a folder of its own, and compare data and drawing.

    Args:
        path: a figure's NAME.json, or any of its files.
        out: where to keep what was drawn; by default it is thrown away.

    Raises:
        InputError: no provenance, a figure that no notebook drew, or a notebook that is gone or takes other
            parameters now.
    """
    path = Path(path)
    first = read_provenance(path)
    run = first.get("notebook")
    if not run:
        raise InputError(f"{first['name']} was saved outside a render: there is no notebook to run again")
    target = run.get("path") or run["name"]
    if out is not None and Path(out).resolve() == path.resolve().parent:
        raise InputError(f"{out} holds the figure itself; give another folder, so that both can be compared")
    with tempfile.TemporaryDirectory(prefix="workbench-reproduce-") as scratch:
        folder = Path(out) if out is not None else Path(scratch)
        report = render(
            [target],
            parameters=run["parameters"],
            preset=first.get("preset") or "default",
            theme=first["figure"]["theme"],
            out=folder,
            formats=() if out is None else FORMATS,
            progress=False,
            force=True,
        )
        (outcome,) = report.outcomes
        if outcome.status != "done":
            return Reproduction(first["name"], False, False, None, _causes(first, first), compared=str(outcome))
        drawn = folder / f"{first['name']}.json"
        if first["name"] not in outcome.figures:
            drew = ", ".join(outcome.figures) or "nothing"
            return Reproduction(first["name"], False, False, None, [], f"the notebook now draws {drew}")
        second = read_provenance(drawn)
        same_data = first["data"]["sha256"] == second["data"]["sha256"]
        difference, compared = (0.0, "") if same_data else _difference(path, drawn)
        return Reproduction(
            name=first["name"],
            same_data=same_data,
            same_figure=first["figure"]["sha256"] == second["figure"]["sha256"],
            difference=difference,
            causes=_causes(first, second),
            compared=compared,
        )


def _difference(first: Path, second: Path) -> tuple[float | None, str]:
    """Largest |a − b| / max|a, b| over the numbers of two CSV files, and why it cannot be said otherwise."""
    before = first.with_suffix(".csv")
    if not before.is_file():
        return None, f"{before.name} is not beside {first.name}, so only their hashes could be compared"
    one, other = pd.read_csv(before), pd.read_csv(second.with_suffix(".csv"))
    if one.shape != other.shape or list(one.columns) != list(other.columns):
        return None, f"{one.shape[0]} rows × {one.shape[1]} columns became {other.shape[0]} × {other.shape[1]}"
    largest = 0.0
    for column in one.columns:
        a, b = one[column], other[column]
        if pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b):
            if (a.isna() != b.isna()).any():
                return None, f"column {column!r} is empty in other rows"
            scale = pd.concat([a.abs(), b.abs()], axis=1).max(axis=1)
            relative = ((a - b).abs() / scale.where(scale > 0, 1.0)).max()
            largest = max(largest, 0.0 if pd.isna(relative) else float(relative))
        elif not (a.fillna("") == b.fillna("")).all():
            return None, f"column {column!r} holds other labels"
    return largest, ""


def _causes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """What has changed between two runs, as far as their provenance tells."""
    found = []
    for package, before in first["versions"].items():
        now = second["versions"].get(package)
        if now != before:
            found.append(f"{package} {before} became {now}")
    git, now_git = first.get("git") or {}, second.get("git") or {}
    if git.get("commit") != now_git.get("commit"):
        found.append(f"commit {git.get('commit')} became {now_git.get('commit')}")
    if git.get("dirty") or now_git.get("dirty"):
        found.append("the checkout has changes that are not committed")
    for kind, label in (("models", "weights"), ("inputs", "inputs")):
        for before, now in zip(first[kind], second[kind], strict=False):
            if before.get("sha256") != now.get("sha256"):
                found.append(f"{label} of {before.get('spec')} have another hash")
    if (first.get("notebook") or {}).get("sha256") != (second.get("notebook") or {}).get("sha256"):
        found.append("the notebook has changed")
    for before, now in zip(first["records"], second["records"], strict=False):
        if before["sha256"] != now["sha256"]:
            found.append(f"the record {before['path']} has changed")
    return found
