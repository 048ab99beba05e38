"""One notebook in one process: `python -m workbench.apps.rendering.process JOB.json`.

The job names the notebook, its parameters and where the executed copy goes. Each started code cell, and at the end
the outcome, is one line of JSON on standard output. `workbench.apps.rendering` starts these.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir

START_ATTEMPTS = 2


class LocalKernelManager(AsyncKernelManager):
    """Kernels reached through sockets in a private folder: TCP ports chosen by two processes at once collide.

    Without a name of its own every kernel of a folder would use the same sockets, and two of them would wait for
    each other's answers.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if os.name == "posix":
            folder = Path(jupyter_runtime_dir())
            folder.mkdir(parents=True, exist_ok=True)
            self.transport = "ipc"
            self.ip = str(folder / f"k{os.getpid()}")


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Execute the notebook and say how it went; the executed copy is kept also where a cell failed."""
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillException, PapermillExecutionError

    started = time.perf_counter()
    executed = Path(job["executed"])
    partial = executed.with_name(f".{executed.stem}.{os.getpid()}.ipynb")
    reached: list[int] = []

    def announce(cell: dict[str, Any], cell_index: int) -> None:
        reached.append(cell_index)
        _say({"cell": cell_index + 1})

    for attempt in range(START_ATTEMPTS):
        outcome: dict[str, Any] = {"status": "done"}
        try:
            papermill.execute_notebook(
                job["notebook"],
                str(partial),
                parameters=job["parameters"],
                kernel_name="python3",
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
            if not reached and attempt + 1 < START_ATTEMPTS:
                continue  # no cell had started: the kernel's start is worth a second try
            outcome = _failure(error, len(reached) or None)
        except (PapermillException, NoSuchKernel, OSError, ValueError) as error:
            outcome = _failure(error, None)
        break
    if partial.exists():
        os.replace(partial, executed)
    return {**outcome, "seconds": time.perf_counter() - started}


def _failure(error: BaseException, cell: int | None) -> dict[str, Any]:
    """`cell` is the number that Jupyter shows before a code cell: In [cell]."""
    return {"status": "failed", "cell": cell, "error": type(error).__name__, "message": str(error)}


def _say(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _stop(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the job whose file is named on the command line."""
    signal.signal(signal.SIGTERM, _stop)  # so that papermill shuts its kernel down on the way out
    with open(sys.argv[1], encoding="utf-8") as handle:
        job = json.load(handle)
    try:
        outcome = run(job)
    except KeyboardInterrupt:
        outcome = {
            "status": "interrupted",
            "cell": None,
            "error": "KeyboardInterrupt",
            "message": "",
            "seconds": 0.0,
        }
    _say(outcome)


if __name__ == "__main__":
    main()
