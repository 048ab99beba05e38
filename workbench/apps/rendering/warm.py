"""A process that has imported what notebooks need, and the processes forked from it.

torch, timm and papermill take longer to import than most notebooks take to run, and every notebook needs them twice:
in the process that runs it and in its kernel. On Linux a render of several notebooks imports them once, and the
explorer's kernels find them imported while the browser was still opening; elsewhere, and where the warm process is
gone, everything starts as it always did.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from workbench.apps.rendering.launcher import KERNEL, add_helpers
from workbench.core.children import python

ADDRESS = "WORKBENCH_WARM"
"""The variable that tells a launcher where the warm process listens."""
LAUNCHER = Path(__file__).with_name("launcher.py")
POSSIBLE = sys.platform == "linux"
FEWEST = 3
"""Notebooks from which on it pays to import first."""
_IMPORTS = (
    "ipykernel.kernelapp",
    "workbench.models.architectures",
    "workbench.runs.analyze",
    "workbench.figures.export",
)
_POLL = 0.05  # seconds between two looks at what has ended
_LONGEST = 1 << 20  # bytes of a request


class WarmProcess:
    """Starts the warm process, and ends it with everything forked from it.

    `folder` holds its socket, whose path has to be short (`short_folder`); `imports` are modules to import besides
    those that every notebook needs.
    """

    def __init__(self, folder: Path, environment: dict[str, str], imports: Sequence[str] = ()) -> None:
        self.address = str(folder / "warm")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.address)
        listener.listen(64)
        self._process = subprocess.Popen(
            python("-m", "workbench.apps.rendering.warm", str(listener.fileno()), *imports),
            pass_fds=[listener.fileno()], env=environment,
            stdin=subprocess.PIPE,  # its end is ours, however we end
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the render, which stops what it started in good order
        )  # fmt: skip
        listener.close()

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None  # a pipe was asked for
        self._process.stdin.close()
        self._process.terminate()  # heard while it still imports; after that it heeds the end of its input
        self._process.wait()


@contextlib.contextmanager
def warm_kernels(imports: Sequence[str] = ()) -> Generator[dict[str, str]]:
    """The environment of a Jupyter server so that its kernels are ours, forked from a warm process where one can be."""
    with tempfile.TemporaryDirectory(prefix="workbench-", dir=short_folder()) as scratch:
        write_kernel(Path(scratch))
        known = os.environ.get("JUPYTER_PATH")
        environment = {"JUPYTER_PATH": os.pathsep.join([scratch, *([known] if known else [])])}
        if not POSSIBLE:
            yield environment
            return
        with WarmProcess(Path(scratch), dict(os.environ), imports) as process:
            yield {**environment, ADDRESS: process.address}


def write_kernel(folder: Path) -> None:
    """Put the kernel ``python3`` under `folder`, an entry of ``JUPYTER_PATH``: it starts through the launcher.

    It is this Python, whatever kernel of that name the user has installed elsewhere.
    """
    from ipykernel.kernelspec import write_kernel_spec

    command = python(LAUNCHER, KERNEL, "-f", "{connection_file}")
    write_kernel_spec(folder / "kernels" / "python3", overrides={"argv": command})


def short_folder() -> str | None:
    """A folder for sockets, whose path the system limits to about 100 letters; macOS's own choice is long."""
    return "/tmp" if os.path.isdir("/tmp") and os.access("/tmp", os.W_OK) else None


def serve(listener: socket.socket) -> None:
    """Fork a process for every request until standard input ends; a requester that goes takes its process along."""
    # It ends by its input, and takes along what it forked. No thread of a library's is to take this signal either; and
    # one meant for what is just forked waits there until it is handled.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    running: dict[int, socket.socket] = {}
    watched = selectors.DefaultSelector()
    watched.register(listener, selectors.EVENT_READ)
    watched.register(sys.stdin, selectors.EVENT_READ)
    open_still = True
    while open_still:
        for key, _ in watched.select(_POLL):
            if key.fileobj is sys.stdin:
                open_still = False
            elif key.fileobj is listener:
                asking, _ = listener.accept()
                child = _fork(asking, [listener, *running.values()])
                if child is None:
                    asking.close()
                    continue
                running[child] = asking
                watched.register(asking, selectors.EVENT_READ, child)
            else:
                _from_requester(key.fileobj, key.data)
        for child in [*running]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                asking = running.pop(child)
                watched.unregister(asking)
                _tell(asking, {"status": os.waitstatus_to_exitcode(status)})
                asking.close()
    for child in running:
        os.kill(child, signal.SIGKILL)
    for child in running:  # whoever waits for the end of this process finds them gone
        os.waitpid(child, 0)


def _from_requester(asking: Any, child: int) -> None:
    """A signal to hand on, or the end of the requester."""
    try:
        word = asking.recv(1)
    except OSError:
        word = b""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, word[0] if word else signal.SIGKILL)


def _fork(asking: socket.socket, inherited: list[socket.socket]) -> int | None:
    """The child's number, in the parent; the child becomes what was asked for and does not come back."""
    try:
        request, descriptors = _receive(asking)
    except (OSError, ValueError):
        return None
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        for descriptor in descriptors:
            os.close(descriptor)
        _tell(asking, {"pid": child})
        return child
    status = 1
    try:
        for held in (*inherited, asking):
            held.close()
        _become(request, descriptors)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # it is the end of this process, which says why and has nobody to raise to
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run a module as a program, with the requester's arguments, environment, folder and streams."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    add_helpers(request["module"])
    sys.argv = [request["module"], *request["arguments"]]
    # A kernel is to end with its parent, which is not the one that its starter named.
    if request["module"] == KERNEL:
        sys.argv.append(f"--IPKernelApp.parent_handle={os.getppid()}")
        _show_figures()
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _show_figures() -> None:
    """Have the kernel's cells show plotly's figures, as it would have decided had it been imported in a kernel."""
    import plotly.io

    plotly.io.renderers.default = os.environ.get("PLOTLY_RENDERER") or "plotly_mimetype"


def _receive(asking: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One request: its length, the three streams, and JSON."""
    head, ancillary, *_ = asking.recvmsg(8, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data)
    length = int.from_bytes(head, "big")
    if len(descriptors) != 3 or not 0 < length <= _LONGEST:
        raise ValueError("no request of a launcher")
    content = b""
    while len(content) < length:
        part = asking.recv(length - len(content))
        if not part:
            raise ValueError("a request that ends early")
        content += part
    return json.loads(content), list(descriptors)


def _tell(asking: socket.socket, said: dict[str, int]) -> None:
    with contextlib.suppress(OSError):
        asking.sendall(json.dumps(said).encode() + b"\n")


def main() -> None:
    """Import the modules that the command line names, then serve the socket whose descriptor it names first."""
    import importlib

    import workbench.figures

    listener = socket.socket(fileno=int(sys.argv[1]))
    for name in (*_IMPORTS, *sys.argv[2:]):
        importlib.import_module(name)
    for name in dir(workbench.figures):  # they are read when first used
        getattr(workbench.figures, name)
    serve(listener)


if __name__ == "__main__":
    main()
