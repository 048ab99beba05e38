"""Kernels forked from a process that has imported: in their own folder and environment, gone with their starter."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import start_new_kernel

from workbench.apps.rendering import kernels
from workbench.core.children import python

pytestmark = pytest.mark.skipif(not kernels.POSSIBLE, reason="kernels are forked on Linux only")
START_S = 300
# Starts as many kernels as its argument says, with the modules imported that it names, and says who they are.
STARTER = """\
import json, os, sys

from jupyter_client.manager import start_new_kernel
from workbench.apps.rendering import kernels

kernels._IMPORTS = ("ipykernel.kernelapp",)
with kernels.kernel_environment() as environment:
    os.environ.update(environment)
    kernels.import_early(sys.argv[2:])
    print("importing", flush=True)
    started = [start_new_kernel(startup_timeout=300)[0] for _ in range(int(sys.argv[1]))]
    processes = [manager.provisioner.process for manager in started]
    print(json.dumps([[type(process).__name__, process.pid] for process in processes]), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def forked():
    """This process starts forked kernels, which find few modules imported, and `colorsys`."""
    with pytest.MonkeyPatch.context() as patch, kernels.kernel_environment() as environment:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(kernels, "_IMPORTS", ("ipykernel.kernelapp",))
        # Another test of this process may have started one, which has imported what that test named.
        server = forkserver.ForkServer()
        for name in ("ensure_running", "connect_to_new_process", "set_forkserver_preload"):
            patch.setattr(forkserver, name, getattr(server, name))
        kernels.import_early(["colorsys"])
        yield
        server._stop()


@contextlib.contextmanager
def kernel(folder):
    manager, client = start_new_kernel(cwd=str(folder), startup_timeout=START_S)
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def say(client, code):
    said = []
    reply = client.execute_interactive(
        code, output_hook=lambda message: said.append(message["content"].get("text", "")), timeout=START_S
    )
    return "".join(said), reply["content"]


@contextlib.contextmanager
def starter(count, *imports, beside=None):
    path = os.pathsep.join(filter(None, [beside and str(beside), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        python("-c", STARTER, str(count), *imports),
        env={**os.environ, "PYTHONPATH": path}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "importing\n"
        yield process
    finally:
        process.kill()
        process.wait(START_S)


def gone(number):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_kernel_has_its_folder_and_environment_and_finds_imported_what_was_named(
    forked, tmp_path, monkeypatch
):
    (tmp_path / "json.py").write_text("raise SystemExit('what lies in the folder is not ours to import')")
    (tmp_path / "beside").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAME", "given")
    monkeypatch.setenv(kernels.HELPERS, str(tmp_path / "beside"))
    with kernel(tmp_path) as (manager, client):
        said, _ = say(
            client,
            "import json, multiprocessing, os, sys\n"
            "print(json.dumps(['colorsys' in sys.modules, os.getcwd(), os.environ['NAME'], sys.path[-2:], os.getsid(0),"
            " os.getppid(), multiprocessing.get_start_method(), sys.path.count(os.getcwd())]))",
        )
        was_imported, folder, name, last, session, parent, method, count = json.loads(said)
        assert was_imported
        assert (folder, name) == (str(tmp_path), "given")
        assert last == [str(tmp_path / "beside"), ""]
        assert session == manager.provisioner.pid  # what it starts is ended with it
        assert parent not in (os.getpid(), 1)
        assert method == "fork" if sys.version_info < (3, 14) else "forkserver"  # as in any other kernel
        assert count == 0


def test_cells_are_interrupted_and_the_kernel_goes_on(forked, tmp_path):
    with kernel(tmp_path) as (manager, client):
        asked = client.execute("import time; open('reached', 'w').close(); time.sleep(600)")
        while not (tmp_path / "reached").exists():
            time.sleep(0.05)
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=START_S))["parent_header"]["msg_id"] != asked:
            pass  # to an earlier question
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        # What is printed right after may still be taken for the interrupted cell's; the reply is not.
        assert say(client, "assert 6 * 7 == 42")[1]["status"] == "ok"


def test_a_kernel_that_is_killed_says_so_and_starts_again(forked, tmp_path):
    with kernel(tmp_path) as (manager, client):
        client.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        process = manager.provisioner.process
        assert process.wait() == process.poll() == -signal.SIGKILL
        assert not manager.is_alive()
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=START_S)
        assert say(client, "print(6 * 7)")[0] == "42\n"


def test_all_kernels_end_with_a_starter_that_is_killed():
    with starter(2) as process:
        started = json.loads(process.stdout.readline())
        assert [kind for kind, _ in started] == ["_Kernel", "_Kernel"]
        process.kill()
        assert all(gone(number) for _, number in started)


def test_where_the_fork_server_fails_a_kernel_is_an_interpreter_of_its_own(tmp_path):
    (tmp_path / "broken.py").write_text("raise OSError('a library that cannot be loaded')")
    with starter(1, "broken", beside=tmp_path) as process:
        ((kind, number),) = json.loads(process.stdout.readline())
        assert kind == "Popen"
        process.kill()
        assert gone(number)


def test_nobody_waits_for_imports_when_all_is_to_end(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path(__file__).with_name('number').write_text(str(os.getpid()))\n"
        "until = time.monotonic() + 300\n"
        "while not pathlib.Path(__file__).with_name('enough').exists() and time.monotonic() < until: time.sleep(0.05)\n"
    )
    with starter(0, "slow", beside=tmp_path) as process:
        number = tmp_path / "number"
        while not (number.exists() and number.read_text()):
            time.sleep(0.05)
        process.stdin.close()
        assert process.wait(START_S) == 0  # while the fork server still imports
    (tmp_path / "enough").touch()
    assert gone(int(number.read_text()))


@pytest.mark.parametrize("forking", [False, True])
def test_the_kernel_is_this_python_and_named_with_its_provisioner(monkeypatch, forking):
    monkeypatch.setattr(kernels, "POSSIBLE", forking)
    with kernels.kernel_environment() as environment:
        monkeypatch.setenv("JUPYTER_PATH", environment["JUPYTER_PATH"])
        spec = KernelSpecManager().get_kernel_spec("python3")
        assert spec.argv[:2] == [sys.executable, "-P"]
        assert spec.metadata["debugger"]
        assert ("kernel_provisioner" in spec.metadata) == forking
    assert not Path(environment["JUPYTER_PATH"].split(os.pathsep)[0]).exists()
