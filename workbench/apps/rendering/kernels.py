"""The kernels of notebooks: this Python's, and on Linux forked from a process with their imports done.

torch, timm and plotly take longer to import than most notebooks take to run. `multiprocessing` has a fork server that
imports them once, and jupyter_client starts kernels through a provisioner: `ForkedKernels` brings the two together.
Elsewhere, and where that server fails, a kernel is a separate interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import LocalProvisioner

from workbench.core.children import python, safe_path
from workbench.core.files import sha256_file
from workbench.frames.provenance import local_modules

HELPERS = "WORKBENCH_HELPERS"
"""The environment variable with the folder of a kernel's notebook."""
MODULES = "WORKBENCH_MODULES"
"""The environment variable with the file for the hashes of a kernel's local modules."""
POSSIBLE = sys.platform == "linux"
_PROVISIONER = "workbench-forked"  # its name among the entry points of pyproject.toml
_IMPORTS = (
    "ipykernel.kernelapp",
    "workbench.models.architectures",
    "workbench.runs.analyze",
    "workbench.figures.export",
)
_CONTEXT = multiprocessing.get_context("forkserver" if POSSIBLE else "spawn")
_PATH = [*sys.path]  # in the fork server: its path, to which nothing was added


if TYPE_CHECKING:
    from multiprocessing import Process as _Process
else:
    _Process = _CONTEXT.Process


def import_early(imports: Sequence[str] = ()) -> None:
    """Make this process's fork server import the modules of every notebook, and `imports`, in the background."""
    import workbench.figures

    if not POSSIBLE:
        return
    figures = [
        f"workbench.figures.{module.name}" for module in pkgutil.iter_modules(workbench.figures.__path__)
    ]
    _CONTEXT.set_forkserver_preload([__name__, *_IMPORTS, *figures, *imports])
    folder, interrupt = tempfile.tempdir, signal.getsignal(signal.SIGINT)
    tempfile.tempdir = short_folder()  # the folder of its socket
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for us, and would end it while it imports
    try:
        with safe_path():
            forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, interrupt)
        tempfile.tempdir = folder


def short_folder() -> str | None:
    """Return a folder for sockets, whose path the system limits to about 100 letters; macOS's default is long."""
    return "/tmp" if os.path.isdir("/tmp") and os.access("/tmp", os.W_OK) else None


@contextlib.contextmanager
def kernel_environment() -> Generator[dict[str, str]]:
    """Yield the environment of a Jupyter server whose kernels are ours."""
    with tempfile.TemporaryDirectory(prefix="workbench-", dir=short_folder()) as scratch:
        write_kernel(Path(scratch), forked=POSSIBLE)
        yield {"JUPYTER_PATH": os.pathsep.join([scratch, *filter(None, [os.environ.get("JUPYTER_PATH")])])}


def write_kernel(folder: Path, forked: bool) -> None:
    """Put the kernel ``python3`` under `folder`, an entry of ``JUPYTER_PATH``.

    It is this Python, whatever kernel of that name the user has installed elsewhere.
    """
    from ipykernel.kernelspec import get_kernel_dict, write_kernel_spec

    command = python("-m", __name__, "-f", "{connection_file}")
    metadata = get_kernel_dict()["metadata"]
    if forked:
        metadata["kernel_provisioner"] = {"provisioner_name": _PROVISIONER}
    write_kernel_spec(folder / "kernels" / "python3", overrides={"argv": command, "metadata": metadata})


class ForkedKernels(LocalProvisioner):
    """Provisioner that starts kernels in processes of the fork server."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Fork the process that `cmd` would have started."""
        process = _Kernel(cmd[cmd.index(__name__) + 1 :], kwargs["env"], kwargs.get("cwd") or os.getcwd())
        try:
            await asyncio.to_thread(process.start)  # it waits until the fork server has imported
        except (
            OSError,
            EOFError,
        ):  # an import failed with more than an ImportError, or the server was killed
            return await super().launch_kernel(cmd, **kwargs)
        self.process: Any = process
        self.pid = self.pgid = process.pid
        self.cwd = process.folder
        return self.connection_info


class _Kernel(_Process):
    """A kernel with the interface of a `subprocess` process."""

    stdin = stdout = stderr = None

    def __init__(self, arguments: list[str], environment: dict[str, str], folder: str) -> None:
        super().__init__()
        self.arguments, self.environment, self.folder = arguments, environment, folder

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        if self.pid is not None and self.exitcode is None:
            os.kill(self.pid, number)

    def run(self) -> None:
        """Run the kernel in the forked process."""
        threading.Thread(target=_end_with_parent, daemon=True).start()
        os.setsid()
        multiprocessing.set_start_method(None, force=True)  # cells choose again how their processes start
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = _PATH
        main([*self.arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])


def _end_with_parent() -> None:
    """End the kernel with its parent process, which may be killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this runs in a process of multiprocessing's
    parent.join()
    os._exit(1)


class _LocalModules:
    """The local modules that a kernel has loaded, with their hashes, kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.hashes = path, dict[str, str]()

    def note(self, *_: Any) -> None:
        """Add the modules that were loaded since."""
        loaded = [file for file in local_modules() if file not in self.hashes]
        if loaded:
            self.hashes |= {file: sha256_file(file) for file in loaded}
            self.path.write_text(json.dumps(self.hashes), encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Run a kernel that imports from its notebook's folder and the current folder after all installed packages."""
    from ipykernel.kernelapp import IPKernelApp

    sys.path += [*filter(None, [os.environ.get(HELPERS)]), ""]
    if "plotly.io" in sys.modules:  # imported outside a kernel it has decided that nothing shows figures
        sys.modules["plotly.io"].renderers.default = os.environ.get("PLOTLY_RENDERER") or "plotly_mimetype"
    kernel = IPKernelApp.instance()
    kernel.initialize(arguments)
    if path := os.environ.get(MODULES):
        assert kernel.shell is not None  # it is initialized
        kernel.shell.events.register("post_run_cell", _LocalModules(Path(path)).note)
    kernel.start()


if __name__ == "__main__":
    main(sys.argv[1:])
