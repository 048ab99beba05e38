"""What a killed process left goes, and nothing else."""

import os
import subprocess
import sys

import pytest

from workbench.core.leftovers import marker, sweep_leftovers


@pytest.fixture(scope="module")
def ended():
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_only_what_ended_processes_marked_is_removed(tmp_path, ended):
    gone = [tmp_path / f".one.workbench-partial-{ended}.ipynb", tmp_path / f"workbench-partial-{ended}-x"]
    gone[0].touch()
    gone[1].mkdir()
    (gone[1] / "inside").touch()
    stay = [
        tmp_path / f".one.{marker('partial')}.ipynb",  # of this process
        tmp_path / f".one.workbench-partial-{os.getppid()}.ipynb",
        tmp_path / f".one.workbench-chrome-{ended}.ipynb",  # of another kind
        tmp_path / f".one.{ended}.ipynb",
        tmp_path / "workbench-partial-mine",
        tmp_path / f"workbench-partial-{10**30}",
    ]
    for path in stay:
        path.touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / f"workbench-partial-{ended}-link"
    link.symlink_to(elsewhere)
    sweep_leftovers(tmp_path, "partial")
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in [*stay, elsewhere, link])
