"""Notebooks one after another in a process: `python -m workbench.apps.rendering.process [--forked]`.

Each line of standard input is a job: a notebook, its parameters, the path of the executed copy, the environment of its
kernel. Each started code cell, and at the end the outcome, is one line of JSON on standard output. `--forked` imports
the kernels' modules once, and forks the kernels from there. `NotebookProcess` of `workbench.apps.rendering.run` is the
other end.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import papermill
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from papermill.engines import NBClientEngine, papermill_engines
from papermill.iorw import write_ipynb

import workbench.analyses
from workbench.apps.rendering.kernels import import_early
from workbench.core.leftovers import marker

PARTIAL = "partial"
"""Marker in the names of running notebooks' copies (`core.leftovers`)."""
_START_ATTEMPTS = 2
# Further imports of most notebooks, which would take each kernel more than a second.
_IMPORTS = (
    "scipy.stats", "pandas.io.formats.style", "pydantic.type_adapter", "rich.console", "plotly.io._renderers",
    "ipykernel.debugger", "narwhals._pandas_like.namespace", "workbench.runs.many",
    *(f"workbench.analyses.{module.name}" for module in pkgutil.iter_modules(workbench.analyses.__path__)),
    # of MiniLM, the text model of most
    *(f"transformers.models.{name}" for name in (
        "auto.modeling_auto", "auto.tokenization_auto", "bert.modeling_bert", "bert.tokenization_bert",
    )),
)  # fmt: skip


class LocalKernelManager(AsyncKernelManager):
    """Kernels reached through sockets in a private folder: TCP ports chosen by two processes at once collide.

    With one name, all kernels of a folder would share sockets, and two of them would wait for each other's answers.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if os.name == "posix":
            folder = Path(jupyter_runtime_dir())
            folder.mkdir(parents=True, exist_ok=True)
            self.transport = "ipc"
            self.ip = str(folder / f"k{os.getpid()}")


class _WrittenOnce(NBClientEngine):
    """papermill's engine, which writes the executed copy once at the end, not before and after every cell."""

    @classmethod
    def execute_notebook(
        cls, nb: Any, kernel_name: str, output_path: str | None = None, *more: Any, **settings: Any
    ) -> Any:
        try:
            return super().execute_notebook(nb, kernel_name, None, *more, **settings)
        except BaseException:  # a kernel died, or all is stopped: write the outputs so far
            write_ipynb(nb, output_path)
            raise


papermill_engines.register("written-once", _WrittenOnce)


def run(job: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Execute the notebook and return its outcome; the executed copy is kept even if a cell failed."""
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillException, PapermillExecutionError

    started = time.perf_counter()
    executed = Path(job["executed"])
    partial = executed.with_name(f".{executed.stem}.{marker(PARTIAL)}.ipynb")
    reached: list[int] = []

    def announce(cell: dict[str, Any], cell_index: int) -> None:
        reached.append(cell_index)
        say({"cell": cell_index + 1})

    for attempt in range(_START_ATTEMPTS):
        outcome: dict[str, Any] = {"status": "done"}
        try:
            papermill.execute_notebook(
                job["notebook"],
                str(partial),
                parameters=job["parameters"],
                kernel_name="python3",
                language="python",  # also of a notebook whose metadata names none
                engine_name="written-once",
                progress_bar=False,
                log_output=False,
                cwd=job["cwd"],
                start_timeout=120,
                kernel_manager_class="workbench.apps.rendering.process.LocalKernelManager",
                on_cell_start=announce,
            )
        except PapermillExecutionError as error:
            outcome = {
                "status": "failed",
                "cell": error.exec_count,
                "error": error.ename,
                "message": str(error.evalue),
            }
        except (DeadKernelError, CellTimeoutError, RuntimeError, TimeoutError) as error:
            if not reached and attempt + 1 < _START_ATTEMPTS:
                continue  # no cell had started: the kernel's start is worth a second try
            outcome = _failure(error, len(reached) or None)
        except (PapermillException, NoSuchKernel, OSError, ValueError) as error:
            outcome = _failure(error, None)
        break
    if partial.exists():
        _forget_folders(partial, job)
        os.replace(partial, executed)
    return {**outcome, "seconds": time.perf_counter() - started}


def _forget_folders(copy: Path, job: dict[str, Any]) -> None:
    """Remove absolute paths from the executed copy: file names only, and the figures' folder as a relative path."""
    content = json.loads(copy.read_text(encoding="utf-8"))
    about = content["metadata"].get("papermill", {})
    about |= {"input_path": Path(job["notebook"]).name, "output_path": Path(job["executed"]).name}
    if "out" in about.get("parameters", {}):
        about["parameters"]["out"] = ".."
    for cell in content["cells"]:
        if "injected-parameters" in cell["metadata"].get("tags", ()):
            lines = "".join(cell["source"]).splitlines(keepends=True)
            cell["source"] = ['out = ".."\n' if line.startswith("out = ") else line for line in lines]
    copy.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _failure(error: BaseException, cell: int | None) -> dict[str, Any]:
    """Build a failed outcome; `cell` is the number that Jupyter shows before a code cell: In [cell]."""
    return {"status": "failed", "cell": cell, "error": type(error).__name__, "message": str(error)}


def _stop(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _read(jobs: queue.SimpleQueue[str]) -> None:
    """Queue the lines of standard input; it ends with the parent process, and then this process ends too."""
    for line in sys.stdin:
        jobs.put(line)
    jobs.put("")  # ends the loop between two jobs
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the jobs that standard input names."""
    signal.signal(signal.SIGTERM, _stop)  # so that papermill shuts its kernel down on the way out
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of kernels and libraries must not mix with the answers
    if "--forked" in sys.argv:
        import_early(_IMPORTS)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=[jobs], daemon=True).start()

    def say(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=answers, flush=True)

    with contextlib.suppress(KeyboardInterrupt):
        while line := jobs.get():
            job = json.loads(line)
            os.environ.clear()
            os.environ.update(job["environment"])
            say(run(job, say))


if __name__ == "__main__":
    main()
