"""The same numbers from several processes: joblib's own, and the workers of a real Dask scheduler or Ray cluster."""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import workbench
from tests.hostile import imported, plant
from tests.runs.sweep.conftest import same_numbers
from workbench.core.children import python
from workbench.core.errors import InputError, MissingResource
from workbench.runs.sweep import read_sweep


def read(status):
    return read_sweep(status.folder)


def kill_a_worker(folder, killed):
    """Kill one of joblib's processes as soon as a part is there."""
    end = time.monotonic() + 600
    while not [*folder.rglob("shard-*.parquet")] and time.monotonic() < end:
        time.sleep(0.02)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # another child, which has just ended
            if "LokyProcess" in " ".join(child.cmdline()):
                child.kill()
                killed.append(child.pid)
                return


def test_two_workers_give_the_numbers_of_one_and_outlive_a_worker(run, tmp_path):
    whole, killed = read(run("whole", n=48, shards=1)), []
    killer = threading.Thread(target=kill_a_worker, args=(tmp_path / "two", killed))
    killer.start()
    status = run("two", n=48, shards=15, workers=2)
    killer.join()
    assert len(killed) == 1
    assert (status.done, status.failed) == (12, 0)  # micro-batches of 4
    same_numbers(read(status), whole)


AT_WORK = """
import os, pathlib, sys, time
from workbench.runs.sweep.workers import open_pool

def work(folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(3600)

with open_pool("loky", 2) as pool:
    list(pool.run(work, [(sys.argv[1],)] * 2))
"""


def test_workers_end_with_a_sweep_that_is_killed(tmp_path):
    """And do not import modules that lie in the current folder."""
    plant(tmp_path)
    marks = tmp_path / "marks"
    marks.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(workbench.__file__).parents[1])}
    parent = subprocess.Popen(python("-c", AT_WORK, str(marks)), cwd=tmp_path, env=environment)
    end = time.monotonic() + 600
    while len([*marks.iterdir()]) < 2:  # both are at work
        assert parent.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    workers = [psutil.Process(int(found.name)) for found in marks.iterdir()]
    parent.kill()
    parent.wait()
    left = psutil.wait_procs(workers, timeout=300)[1]
    for worker in left:
        worker.kill()
    assert not left
    assert imported(tmp_path) == []


def test_a_dask_scheduler_with_two_workers_gives_the_numbers_of_one_process(run):
    from distributed import LocalCluster

    whole = read(run("whole", shards=1))
    # Workers in threads, reached through the network as any: what other processes must import, joblib's have imported.
    local = {"processes": False, "protocol": "tcp://", "dashboard_address": None}
    with LocalCluster(n_workers=2, threads_per_worker=1, **local) as cluster:
        status = run("dask", backend="dask", scheduler=cluster.scheduler_address)
    assert (status.done, status.failed) == (3, 0)
    same_numbers(read(status), whole)


def test_a_local_ray_cluster_gives_the_numbers_of_one_process(run):
    """With `make ray`, which installs it."""
    pytest.importorskip("ray", reason="Ray is an extra: make ray installs it and runs this")
    whole = read(run("whole", shards=1))
    status = run("ray", backend="ray", workers=2)
    assert (status.done, status.failed) == (3, 0)
    same_numbers(read(status), whole)


def test_a_scheduler_that_is_not_there_and_a_backend_that_is_not_installed_are_reported(run, monkeypatch):
    monkeypatch.setattr("workbench.runs.sweep.workers.CONNECT_SECONDS", 1)
    with pytest.raises(MissingResource, match=r"no Dask scheduler answers at tcp://127.0.0.1:9"):
        run("nobody", backend="dask", scheduler="tcp://127.0.0.1:9")
    with pytest.raises(InputError, match="needs backend='dask' or 'ray'"):
        run("loky", scheduler="tcp://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingResource, match=r"install the extra 'ray' with pip install .*\[ray\]"):
        run("ray", backend="ray")
