"""Files are there whole or not at all."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from workbench.core.errors import MissingResource
from workbench.core.files import atomic_write, sha256_bytes, sha256_file, write_json


def test_writing_leaves_no_half_file(tmp_path):
    def fail(handle):
        handle.write(b"half")
        raise RuntimeError("stop")

    target = tmp_path / "folder with space" / "result.csv"
    with pytest.raises(RuntimeError, match="stop"):
        atomic_write(target, fail)
    assert list(target.parent.iterdir()) == []
    atomic_write(target, b"first")
    with pytest.raises(RuntimeError, match="stop"):
        atomic_write(target, fail)
    assert target.read_bytes() == b"first"
    assert os.listdir(target.parent) == ["result.csv"]


def test_a_file_is_complete_before_it_takes_its_name(tmp_path, monkeypatch):
    renamed, replace = [], os.replace

    def seen(source, target):
        renamed.append((Path(source).read_bytes(), Path(target).exists()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", seen)
    atomic_write(tmp_path / "small.csv", lambda handle: handle.write(b"a few bytes, which a buffer holds"))
    assert renamed == [(b"a few bytes, which a buffer holds", False)]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(MissingResource, match="cannot write"):
        atomic_write(blocked / "result.csv", b"")


def test_json_holds_what_python_has_and_ends_in_a_line(tmp_path):
    value = {"größe": (1, np.float64(0.1)), 3: np.arange(2), "place": Path("a")}
    path = write_json(tmp_path / "held.json", value)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == {"größe": [1, 0.1], "3": [0, 1], "place": "a"}
    assert "größe" in text
    assert text.endswith("}\n")
    assert sha256_file(path) == sha256_bytes(text.encode())
