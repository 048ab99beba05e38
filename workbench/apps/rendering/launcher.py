"""Runs a module in a process forked from the warm one, and stands for it: `python -P launcher.py MODULE ARGUMENT…`.

Signals go on to that process, its streams are ours, and its exit status becomes ours; it ends with whoever started
us. Where no warm process answers, the module is run here. It imports the standard library alone, since it is to start
at once.
"""

import contextlib
import json
import os
import runpy
import signal
import socket
import sys

KERNEL = "ipykernel"
HELPERS = "WORKBENCH_HELPERS"
"""The variable that tells a kernel the folder of its notebook."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM)
_LOOK_SECONDS = 1.0


def main() -> int:
    """Ask for the process and wait for its end."""
    module, arguments, starter = sys.argv[1], sys.argv[2:], os.getppid()
    warm = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        warm.connect(os.environ.get("WORKBENCH_WARM", ""))
    except OSError:
        return _here(module, arguments)
    asked = {
        "module": module, "arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(),
    }  # fmt: skip
    content = json.dumps(asked).encode()
    answers = b""

    def forward(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):  # the process has just ended
            warm.send(bytes([number]))

    try:
        # A signal waits until the whole request is sent, which its byte would break, and then goes on, since the
        # process may be at work before the next line is.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        try:
            socket.send_fds(warm, [len(content).to_bytes(8, "big")], [0, 1, 2])
            warm.sendall(content)
            for number in _FORWARDED:
                signal.signal(number, forward)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        warm.settimeout(_LOOK_SECONDS)
        while part := _next(warm, starter):
            answers += part
    except OSError:
        pass
    said = [json.loads(line) for line in answers.splitlines()]
    status = next((one["status"] for one in said if "status" in one), None)
    if status is None:
        return 1 if said or os.getppid() != starter else _here(module, arguments)
    if status < 0:  # it was killed: so are we, for those who watch
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    return status


def _next(warm: socket.socket, starter: int) -> bytes:
    """What the warm process says next; nothing once it has said all, or once our starter is gone.

    A notebook's process that is killed leaves its kernel, which would hold the streams of both open for ever.
    """
    while os.getppid() == starter:
        with contextlib.suppress(TimeoutError):
            return warm.recv(1024)
    return b""


def _here(module: str, arguments: list[str]) -> int:
    for number in _FORWARDED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.argv = [module, *arguments]
    add_helpers(module)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def add_helpers(module: str) -> None:
    """Let a kernel find what lies beside its notebook and in its current folder, after all that is installed."""
    if module == KERNEL:
        sys.path += [*filter(None, [os.environ.get(HELPERS)]), ""]


if __name__ == "__main__":
    sys.exit(main())
