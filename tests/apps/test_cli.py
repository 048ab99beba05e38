"""The command through its entry point: what a person types, what they get, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from workbench._version import __version__
from workbench.analyses.registry import ANALYSES
from workbench.apps import cli
from workbench.core.options import read_options


@pytest.fixture
def run(capsys, monkeypatch):
    """Call the entry point; returns (exit status, standard output, standard error)."""
    monkeypatch.delenv("WORKBENCH_DEBUG", raising=False)

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return call


BUNDLED = ("--model", "bundled:digits-vit", "--inputs", "bundled:digits")


def test_version_and_help_through_the_installed_command():
    command = Path(sys.executable).with_name("workbench")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert __version__ in done.stdout
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in cli.cli.commands)


@pytest.mark.parametrize("name", list(cli.cli.commands))
def test_every_command_explains_itself(run, name):
    status, out, _ = run(name, "--help")
    assert status == 0
    assert "Usage: workbench" in out


def test_analyze_help_lists_every_analysis_with_its_options(run):
    from workbench.runs.analyze import ANALYSES

    _, out, _ = run("analyze", "--help")
    for analysis in ANALYSES.values():
        assert analysis.name in out
        assert all(f"--{option.replace('_', '-')}" in out for option in analysis.options)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "tex"])
def test_analyze_writes_each_format(run, tmp_path, suffix):
    out = tmp_path / f"spectrum.{suffix}"
    status, said, err = run("analyze", "gram-spectrum", *BUNDLED, "--n", 2, "--layers", "0,2-3", "--out", out)
    assert status == 0, err
    assert out.name in said
    assert out.stat().st_size > 500


def test_the_word_none_means_what_an_option_says(run, tmp_path):
    out, plain = tmp_path / "none.csv", tmp_path / "plain.csv"
    spectrum = ("analyze", "gram-spectrum", *BUNDLED, "--n", 2, "--layers", 1)
    status, _, err = run(*spectrum, "--standardize", "none", "--normalize=none", "--out", out)
    assert status == 0, err
    assert run(*spectrum, "--out", plain)[0] == 0
    assert out.read_bytes() == plain.read_bytes()
    rates = ("analyze", "coding-rate", *BUNDLED, "--n", 2, "--layers", 1, "--eps", "none", "--out", out)
    status, _, err = run(*rates)  # here none is no choice, but no value
    assert status == 0, err
    status, _, err = run(*spectrum, "--max-rank", "none", "--out", out)
    assert status == 2
    assert "max_rank must be 'head_dim', 'all' or a whole number from 1 up; got 'none'" in err


@pytest.mark.parametrize("name", sorted(ANALYSES))
def test_every_default_of_an_analysis_can_be_typed(name):
    options = ANALYSES[name].options
    typed = {option: str(rule.default) for option, rule in options.items()}
    assert read_options(typed, options) == {option: rule.default for option, rule in options.items()}


def test_a_sweep_reads_options_as_analyze_does():
    words = "gram-spectrum:standardize=none:max-rank=8"
    assert cli._analysis(words) == ("gram-spectrum", {"standardize": "none", "max_rank": 8})
    assert cli._analysis("coding-rate:eps=none") == ("coding-rate", {"eps": None})


@pytest.mark.parametrize(
    ("notebook", "meant"), [("eigenvector_test", "none"), ("gram_spectra", None)], ids=["text", "or None"]
)
def test_parameters_of_a_notebook_are_read_as_it_takes_them(run, monkeypatch, notebook, meant):
    given = {}

    def render(names, *, parameters, **options):
        given.update(parameters)
        return SimpleNamespace(failed=[])

    monkeypatch.setattr("workbench.apps.rendering.render", render)
    run("render", notebook, "-p", "standardize", "none", "-p", "n", "3", "-p", "layers", "2")
    assert given == {"standardize": meant, "n": 3, "layers": "2"}


def test_options_of_an_analysis_are_given_as_flags_and_values(run, tmp_path):
    out = tmp_path / "heads.csv"
    own = ("--axis", "tokens", "--statistic=max", "--per-head", "--null-samples", 0, "--heads", "0,2")
    status, _, err = run("analyze", "value-similarity", *BUNDLED, "--n", 2, "--layers", 1, *own, "--out", out)
    assert status == 0, err
    frame = pd.read_csv(out)
    assert set(frame["axis"].dropna()) == {"tokens"}
    assert set(frame["head"]) == {0, 2}
    assert frame["null"].isna().all()
    means = tmp_path / "means.csv"
    status, _, err = run(
        "analyze", "value-similarity", *BUNDLED, "--n", 2, "--null-samples", 2, "--out", means
    )
    assert status == 0, err
    assert pd.read_csv(means)["head"].isna().all()


def test_claims_are_printed_and_written(run, tmp_path):
    out = tmp_path / "claims.csv"
    status, said, err = run("claims", "--paper", "saritas2025", "--n", 2, "--null-samples", 2, "--out", out)
    assert status == 0, err
    assert "verdict" in said
    frame = pd.read_csv(out)
    assert set(frame["paper"]) == {"saritas2025"}
    assert set(frame["verdict"]) <= {"holds", "fails", "undecided", "not tested at this scale"}


def test_the_same_seed_gives_the_same_numbers_and_another_does_not(run, tmp_path):
    frames = []
    for number, seed in enumerate([5, 5, 6]):
        out = tmp_path / f"{number}.csv"
        run("analyze", "attention-map", *BUNDLED, "--n", 3, "--seed", seed, "--layers", "1", "--out", out)
        frames.append(pd.read_csv(out))
    assert frames[0].equals(frames[1])
    assert not frames[0].equals(frames[2])


def test_a_capture_file_feeds_analyze_and_compares_equal_to_itself(run, tmp_path):
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for out in (first, second):
        status, _, err = run("capture", *BUNDLED, "--n", 2, "--out", out)
        assert status == 0, err
    status, said, _ = run("compare", first, second)
    assert status == 0
    assert "the same" in said
    out = tmp_path / "from-file.csv"
    status, _, err = run("analyze", "gram-spectrum", "--qkv", first, "--out", out)
    assert status == 0, err
    direct = tmp_path / "direct.csv"
    run("analyze", "gram-spectrum", *BUNDLED, "--n", 2, "--out", direct)
    values = [
        pd.read_csv(path).sort_values(["layer", "head", "metric", "rank"])["value"] for path in (out, direct)
    ]
    pd.testing.assert_series_equal(*[value.sort_values(ignore_index=True) for value in values], rtol=1e-9)


def test_compare_ends_in_1_where_captures_differ(run, tmp_path):
    for name, checkpoint in (("a", "epoch-030"), ("b", "epoch-000")):
        status, _, err = run(
            "capture",
            *BUNDLED,
            "--n",
            2,
            "--checkpoint",
            checkpoint,
            "--out",
            tmp_path / f"{name}.safetensors",
        )
        assert status == 0, err
    status, said, _ = run("compare", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert status == 1
    assert "layer 0" in said


def test_metrics_and_models_as_json(run):
    _, out, _ = run("metrics", "--json")
    names = {row["metric"] for row in json.loads(out)}
    assert {"eigenvalue", "token_cosine", "attention_entropy"} <= names
    _, out, _ = run("models", "--json")
    assert any("bundled:digits-vit" in str(row) for row in json.loads(out))


def test_doctor_reports_what_is_here(run):
    status, out, _ = run("doctor", "--json")
    found = {row["check"]: row["state"] for row in json.loads(out)}
    assert status == 0
    assert found["bundled models"] == found["notebooks"] == found["torch"] == "ok"


WRONG = {
    "unknown analysis": (("analyze", "gram-spectrun", *BUNDLED, "--out", "x.csv"), "gram-spectrum"),
    "unknown option": (("analyze", "gram-spectrum", *BUNDLED, "--max-rnk", "3", "--out", "x.csv"), "max_rank"),
    "ill-typed option": (("analyze", "gram-spectrum", *BUNDLED, "--max-rank", "few", "--out", "x.csv"), "few"),
    "unknown model": (("capture", "--model", "bundled:digit", *BUNDLED[2:], "--out", "x.safetensors"), "digits-vit"),
    "unknown input": (("capture", *BUNDLED[:2], "--inputs", "bundled:digit", "--out", "x.safetensors"), "digits"),
    "no model": (("analyze", "gram-spectrum", "--out", "x.csv"), "model"),
    "layer out of range": (("analyze", "gram-spectrum", *BUNDLED, "--layers", "9", "--out", "x.csv"), "9"),
    "unknown suffix": (("analyze", "gram-spectrum", *BUNDLED, "--out", "x.xlsx"), ".parquet"),
    "missing file": (("analyze", "gram-spectrum", "--qkv", "none.safetensors", "--out", "x.csv"), "none.safetensors"),
    "unknown notebook": (("render", "gram_spectrum"), "gram_spectra"),
    "unknown parameter": (("render", "gram_spectra", "-p", "modle", "x"), "model"),
    "ill-typed parameter": (("render", "gram_spectra", "-p", "n", "many"), "many"),
    "unknown paper": (("claims", "--paper", "teo2025"), "teo2024"),
    "comparison in another format": (("compare", "a.safetensors", "b.safetensors", "--out", "c.json"), ".csv"),
    "no checkpoint": (("evaluate", "runs/epoch-030.safetensors"), "no checkpoint at runs/epoch-030.safetensors"),
    "no such port": (("explore", "--port", "99999"), "65535"),
    "claims in another format": (("claims", "--out", "claims.parquet"), ".csv"),
    "unknown command": (("analyse",), "analyse"),
    "unknown task": (("train", "digit"), "digits"),
    "no provenance": (("reproduce", "figures/none.json"), "none.json"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_ends_in_2_with_a_clear_line_and_no_traceback(run, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    arguments, expected = WRONG[case]
    status, out, err = run(*arguments)
    assert status == 2, err
    assert expected in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(monkeypatch):
    from workbench.core.errors import InputError

    with pytest.raises(InputError):
        cli.main(["analyze", "gram-spectrun", *BUNDLED, "--out", "x.csv", "--debug"])


def test_a_result_that_cannot_be_written_ends_in_3(run, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way of a folder")
    status, _, err = run("analyze", "gram-spectrum", *BUNDLED, "--n", 1, "--out", blocked / "x.csv")
    assert status == 3
    assert str(blocked) in err


TO_A_FILE = {
    "analyze": ("gram-spectrum", *BUNDLED, "--out", "x.csv"),
    "capture": (*BUNDLED, "--out", "x.safetensors"),
    "claims": ("--out", "x.csv"),
    "compare": ("a.safetensors", "b.safetensors", "--out", "x.csv"),
    "evaluate": ("bundled:digits-vit", "--out", "x.csv"),
}


@pytest.mark.parametrize("command", TO_A_FILE)
def test_a_place_that_takes_no_file_is_refused_before_the_work(run, tmp_path, monkeypatch, command):
    def work(*_, **__):
        pytest.fail("the work began")

    for name in (
        "pipeline.analyze",
        "pipeline.capture_inputs",
        "claims",
        "recording.compare",
        "evaluation.evaluate",
    ):
        monkeypatch.setattr(f"workbench.{name}", work)
    blocked = tmp_path / "file"
    blocked.write_text("in the way of a folder")
    *arguments, out = TO_A_FILE[command]
    status, _, err = run(command, *arguments, blocked / "folder" / out)
    assert status == 3
    assert f"{blocked} is no folder" in err
    assert list(tmp_path.iterdir()) == [blocked]


def test_capture_says_which_sites_the_attention_has(run, tmp_path):
    out = tmp_path / "tost.safetensors"
    status, said, err = run(
        "capture",
        "--model",
        "bundled:digits-tost",
        *BUNDLED[2:],
        "--n",
        1,
        "--sites",
        "q,output",
        "--out",
        out,
    )
    assert status == 0
    assert "sites q, output, membership written" in said
    assert "only layers 4, 5 of this attention has q" in err


def test_interruption_ends_in_130(run, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.runs.analyze.analyze", interrupted)
    status, _, err = run("analyze", "gram-spectrum", *BUNDLED, "--out", tmp_path / "x.csv")
    assert status == 130
    assert "kept" in err


def test_bench_operators_within_no_budget_says_so_and_keeps_a_table(run, tmp_path):
    out = tmp_path / "study"
    status, said, err = run("bench", "operators", "--budget", 0, "--sweep", "causal", "--out", out)
    assert status == 0, err
    assert "1 thread" in said
    assert "18 of 18 points lie beyond the budget of 0 minutes" in err
    assert pd.read_csv(out / "points.csv").empty
    status, _, err = run("bench", "operators", "--sweep", "tokns")
    assert status == 2
    assert err == "error: unknown sweep 'tokns'; did you mean 'tokens'?\n"
