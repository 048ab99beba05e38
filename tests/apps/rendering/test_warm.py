"""Processes forked from a warm one: what was asked for, with one's own streams and status, and gone with the asker."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from workbench.apps.rendering.warm import ADDRESS, LAUNCHER, POSSIBLE, WarmProcess, warm_kernels
from workbench.core.children import python

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="processes are forked on Linux only")

PROBE = """\
import json, os, signal, sys, time

if sys.argv[1] == "tell":
    given = {"arguments": sys.argv[2:], "folder": os.getcwd(), "said": sys.stdin.read(), "name": os.environ["NAME"]}
    print(json.dumps({**given, "warm": "torch" in sys.modules, "parent": os.getppid()}))
    print("an error", file=sys.stderr)
    sys.exit(7)
if sys.argv[1] == "wait":
    try:
        print(os.getpid(), flush=True)  # the signal may come as soon as this is read
        time.sleep(600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(3)
if sys.argv[1] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm")
    (folder / "probe.py").write_text(PROBE)
    return folder


@pytest.fixture(scope="module")
def environment(place):
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def warm(place, environment):
    with WarmProcess(place, environment) as process:
        yield {**environment, ADDRESS: process.address, "NAME": "given"}


def start(environment, *words, **more):
    return subprocess.Popen(
        python(LAUNCHER, "probe", *words),
        env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
    )  # fmt: skip


def gone(number):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_it_runs_what_was_asked_with_the_askers_streams_folder_and_environment(warm, tmp_path):
    process = start(warm, "tell", "a b", "c", cwd=tmp_path)
    out, err = process.communicate("words", timeout=120)
    told = json.loads(out)
    assert told["arguments"] == ["a b", "c"]
    assert (told["folder"], told["said"], told["name"]) == (str(tmp_path), "words", "given")
    assert told["warm"]
    assert told["parent"] != process.pid
    assert err == "an error\n"
    assert process.returncode == 7


def test_an_interrupt_goes_on(warm):
    process = start(warm, "wait")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120)[0] == "interrupted\n"
    assert process.returncode == 3


def test_what_is_killed_says_so(warm):
    process = start(warm, "die")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL


def test_a_launcher_that_is_killed_takes_its_process_along(warm):
    process = start(warm, "wait")
    number = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=120)
    assert gone(number)


def test_a_launcher_whose_starter_is_killed_takes_its_process_along(warm):
    command = python(LAUNCHER, "probe", "wait")
    starter = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.call({command!r})"],
        env=warm, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    number = int(starter.stdout.readline())
    starter.kill()
    starter.communicate(timeout=120)  # the stream ends with all who hold it
    assert gone(number)


def test_several_run_at_a_time_and_all_end_with_the_warm_process(environment, tmp_path):
    with WarmProcess(tmp_path, environment) as process:
        asked = {**environment, ADDRESS: process.address}
        waiting = [start(asked, "wait") for _ in range(2)]
        numbers = [int(one.stdout.readline()) for one in waiting]
    assert all(gone(number) for number in numbers)
    for one in waiting:
        one.communicate(timeout=120)
        assert one.returncode != 0


def test_it_ends_while_it_still_imports(environment, tmp_path):
    (tmp_path / "endless.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(3600)\n"
    )
    own = {**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    with WarmProcess(tmp_path, own, ["endless"]):
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)


def test_without_a_warm_process_the_launcher_runs_it_itself(environment, place, tmp_path):
    asked = {**environment, ADDRESS: str(tmp_path / "nobody"), "NAME": "here"}
    process = start(asked, "tell", "x", cwd=place)
    out, _ = process.communicate("", timeout=120)
    assert not json.loads(out)["warm"]
    assert process.returncode == 7


def test_a_kernel_of_a_jupyter_server_is_forked(tmp_path, monkeypatch):
    from jupyter_client.manager import start_new_kernel

    (tmp_path / "json.py").write_text("raise SystemExit('what lies in the folder is not ours to import')")
    monkeypatch.chdir(tmp_path)
    with warm_kernels(["colorsys"]) as told:
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        manager, client = start_new_kernel(cwd=str(tmp_path), startup_timeout=300)
        try:
            said = []
            client.execute_interactive(
                "import os, sys\nprint({'torch', 'colorsys'} <= {*sys.modules}, os.getcwd(), os.getcwd() in sys.path)",
                output_hook=lambda message: said.append(message["content"].get("text", "")),
                timeout=120,
            )
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
    assert "".join(said).split() == ["True", str(tmp_path), "False"]


def test_where_nothing_can_be_forked_a_server_is_told_of_no_warm_process(monkeypatch):
    monkeypatch.setattr("workbench.apps.rendering.warm.POSSIBLE", False)
    with warm_kernels() as told:
        assert [*told] == ["JUPYTER_PATH"]
