"""Finding Chrome, and saying what to do without it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.core.errors import MissingResource
from workbench.figures.export import WarmChrome, chrome

SCRIPT = Path(__file__).parents[3] / "scripts" / "ensure-chrome"


def program(path, text="echo Chromium 1.2.3.4"):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_one_the_user_names_goes_first(tmp_path, monkeypatch):
    own = program(tmp_path / "my browser")
    monkeypatch.setenv("BROWSER_PATH", str(own))
    assert chrome.find_chrome() == own
    assert chrome.chrome_version(own) == "Chromium 1.2.3.4"


def test_a_wrong_browser_path_is_not_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "absent"))
    assert chrome.find_chrome() is None
    assert "BROWSER_PATH" in chrome.missing_chrome()
    with pytest.raises(MissingResource, match="make chrome"):
        WarmChrome()


def test_the_search_path_is_looked_through(tmp_path, monkeypatch):
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = program(tmp_path / "google-chrome")
    assert chrome.find_chrome() == found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fetcher's folder is another elsewhere")
def test_a_fetched_one_is_found_where_the_fetcher_puts_it(tmp_path, monkeypatch):
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "choreographer" / "deps" / "chrome-linux64"
    folder.mkdir(parents=True)
    assert chrome.find_chrome() is None
    assert program(folder / "chrome") == chrome.find_chrome()


def test_a_chrome_that_does_not_start_is_an_error_and_not_a_hang(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(program(tmp_path / "broken", "exit 1")))
    with pytest.raises(MissingResource, match="did not start"):
        WarmChrome()
    assert chrome.chrome_version(tmp_path / "broken") is None


@pytest.mark.skipif(sys.platform == "win32", reason="the script is for POSIX shells")
def test_the_setup_script_succeeds_with_and_without_chrome(tmp_path):
    own = program(tmp_path / "my browser")
    with_one = subprocess.run(
        ["sh", SCRIPT],
        env={**os.environ, "BROWSER_PATH": str(own)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(own) in with_one.stdout
    without = subprocess.run(
        ["sh", SCRIPT],
        env={**os.environ, "BROWSER_PATH": "/absent"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "/absent" in without.stderr
