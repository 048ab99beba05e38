"""`workbench sweep` and `workbench sweep status` as a user types them."""

import json

import pytest

from tests.runs.sweep.conftest import MODEL
from workbench.apps import cli

WORDS = ("sweep", "run", "-m", MODEL, "-i", "bundled:digits", "-n", "5")


def run(*words):
    with pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    return left.value.code


def test_a_sweep_and_its_status(tmp_path, capsys):
    words = [
        "-a",
        "gram-spectrum",
        "-a",
        "token-similarity",
        "-s",
        "max_rank=2",
        "-s",
        "gram-spectrum.null_samples=0",
    ]
    assert run(*WORDS, *words, "--batch-size", 2, "--shards", 2, "-o", tmp_path / "a") == 0
    assert "4 of 4 tasks done" in capsys.readouterr().out
    assert run("sweep", "status", tmp_path / "a", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["analysis"] for row in rows] == [
        "gram-spectrum:max_rank=2:null_samples=0",
        "token-similarity",
    ]
    assert [(row["done"], row["left"], row["inputs"]) for row in rows] == [(2, 0, 5)] * 2
    assert run("sweep", "status", tmp_path / "a") == 0
    assert "gram-spectrum:max_rank=2" in capsys.readouterr().out
    next((tmp_path / "a" / "parts").rglob("shard-00001.parquet")).unlink()
    read = ("sweep", "read", tmp_path / "a", "-o", tmp_path / "a.parquet")
    assert run(*read) == 2
    assert "--allow-partial" in capsys.readouterr().err
    assert not (tmp_path / "a.parquet").exists()
    assert run(*read, "--allow-partial") == 0
    said = capsys.readouterr()
    assert "1 of 2 shards are missing" in said.out + said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sweep", "run"), "Missing option '-m' / '--model'"),
        ((*WORDS, "-a", "token-similarity", "extra", "-o", "x"), "unexpected extra argument (extra)"),
        ((*WORDS, "-a", "gram-spectrum", "-s", "max_rank", "-o", "x"), "'max_rank' is not written KEY=VALUE"),
        ((*WORDS, "-a", "gram-spectrum", "-s", "max_rnk=2", "-o", "x"), "did you mean 'max_rank'"),
        ((*WORDS, "-a", "gram-spectrm", "-o", "x"), "did you mean 'gram-spectrum'"),
        ((*WORDS, "-a", "token-similarity", "--max-time", "soon", "-o", "x"), "30m or 8h"),
        (("sweep", "status", "x"), "holds no sweep"),
    ],
)
def test_a_request_that_cannot_be_run_ends_with_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "x").exists()
