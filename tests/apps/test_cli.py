"""The command through its entry point: what a person types, what they get, and how it ends."""

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import click
import pandas as pd
import pytest

import workbench
from tests.apps.explorer.test_page import bundle_of
from workbench._version import __version__
from workbench.analyses.registry import ANALYSES
from workbench.apps import cli
from workbench.apps.cli import completion, shared_options
from workbench.apps.cli.printing import print_table
from workbench.core.errors import InputError, MissingResource, WorkbenchError
from workbench.papers.verdicts import FAILS, HOLDS, NOT_DIAGNOSTIC, NOT_TESTED, RANDOM_TOO, UNDECIDED
from workbench.runs.settings import SETTINGS


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


BUNDLED = ("-m", "bundled:digits-vit", "-i", "bundled:digits")


def tree(group, path=()):
    """Every command below a group, by its path."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from tree(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(tree(cli.cli))
# name of an option → what else it is called; --out takes FILE or FOLDER, and the others what the metavar says
SCHEME = {
    "--model": ("-m", "SPEC"), "--inputs": ("-i", "SPEC"), "--set": ("-s", "KEY=VALUE"), "-n": (None, "N|all"),
    "--text": (None, "TEXT"),
    "--out": ("-o", None), "--workers": ("-j", "NUMBER"), "--seed": (None, "NUMBER"), "--analysis": ("-a", "NAME"),
    "--layers": (None, "LIST"), "--heads": (None, "LIST"), "--order": (None, "random|file"),
    "--preprocessing": (None, None), "--batch-size": (None, "NUMBER"), "--device": (None, "NAME"),
    "--dtype": (None, "NAME"), "--restart": (None, None), "--json": (None, None), "--max-time": (None, "TIME"),
    "--font": (None, "NAME"), "--letters": (None, "FIRST"),
    "--theme": (None, None), "--protocol": (None, "NAME"), "--epochs": (None, "NUMBER"), "--limit": (None, "NUMBER"),
    "--work": (None, "FOLDER"), "--sweep": (None, "NAME"), "--operator": (None, "NAME"),
    # what one command alone has
    "--qkv": (None, "FILE"), "--cache": (None, None), "--sites": (None, "LIST"), "--tolerance": (None, "NUMBER"),
    "--view": (None, "FRAGMENT"), "--cards": (None, "NUMBER"),
    "--paper": (None, "KEY"), "--parameters": ("-p", "KEY VALUE"), "--parameters-raw": ("-r", "KEY VALUE"),
    "--parameters-file": ("-f", "FILE"), "--parameters-yaml": ("-y", "YAML"), "--preset": (None, None),
    "--formats": (None, "LIST"), "--trust": (None, None), "--app": (None, None), "--port": (None, "PORT"),
    "--no-browser": (None, None), "--shards": (None, "NUMBER"), "--part": (None, "I/N"), "--backend": (None, None),
    "--scheduler": (None, "ADDRESS"), "--attention": (None, "NAME"), "--boost": (None, None),
    "--data": (None, "FILE-OR-FOLDER"), "--recipe": (None, "NAME-OR-FILE"), "--epsilon": (None, "LIST"),
    "--reference": (None, "SPEC"), "--install": (None, None), "--save": (None, "FILE"),
    "--index": (None, "NUMBER"), "--max-size": (None, "MB"), "--per": (None, None), "--generate": (None, "NUMBER"),
    "--checkpoints": (None, None),
    "--allow-partial": (None, None), "--confirm": (None, None), "--runs": (None, "FOLDER"),
    "--check": (None, None), "--primary": (None, None), "--why": (None, None), "--untrained": (None, "N"),
    "--shuffled": (None, None), "--start": (None, "CHECKPOINT"), "--name": (None, "NAME"),
    "--variant": (None, "NAME"), "--columns": (None, "NUMBER"), "--width": (None, "INCHES|NAME"),
}  # fmt: skip
TABLES = {
    "models", "analyses", "metrics", "notebooks", "doctor", "compare", "claims", "table", "cache info", "sweep status",
    "study claims", "study evaluate", "study efficiency", "render",
}  # fmt: skip
RESUMED = {
    "sweep run", "render", "study train", "study efficiency", "study records training", "study records robustness",
    "study records operators", "study records embedded", "study records learned", "study records claims",
    "study records theorems",
}  # fmt: skip


def options_of(command):
    return [param for param in command.params if isinstance(param, click.Option)]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_speaks_the_one_scheme(path):
    named = {}
    for option in options_of(COMMANDS[path]):
        name = option.opts[-1]
        assert name in SCHEME, (
            f"{name} is not of the scheme: add it there and to docs/cli.md, or use what there is"
        )
        short, metavar = SCHEME[name]
        assert [*option.opts] == [*([short] if short else []), name]
        if name == "--out":
            metavar = "FILE" if option.type.file_okay else "FOLDER"
            assert option.type.file_okay != option.type.dir_okay
        elif metavar is None:
            assert option.is_flag or isinstance(option.type, click.Choice)
        assert option.metavar == metavar
        assert re.fullmatch(r"[A-Zj].*[.\]]", option.help), f"{name}: {option.help!r} is no sentence"
        context = click.Context(COMMANDS[path])
        default = option.get_default(context)
        if isinstance(default, str | int | float) and default is not False:
            assert "[default: " in option.get_help_record(context)[1], name
        named[name] = option
    words = " ".join(path)
    assert ("--json" in named) == (words in TABLES)
    assert ("--restart" in named) == (words in RESUMED)


def test_an_option_has_one_default_wherever_it_stands():
    defaults = {}
    for command in COMMANDS.values():
        for option in options_of(command):
            if option.opts[-1] in (
                "-n",
                "--seed",
                "--batch-size",
                "--preprocessing",
                "--workers",
                "--theme",
                "--heads",
            ):
                stated = re.search(r"\[default: .*\]", option.help)
                defaults.setdefault(option.opts[-1], set()).add((option.default, stated and stated[0]))
    assert {name: len(found) for name, found in defaults.items()} == dict.fromkeys(defaults, 1)
    assert len(defaults) == 7


def test_defaults_are_those_of_the_library():
    library = inspect.signature(workbench.analyze).parameters
    given = COMMANDS["analyze",].make_context("analyze", ["gram-spectrum", "-o", "x.csv"]).params
    assert {name: given[name] for name in shared_options.RUN_SETTINGS} == {
        name: library[name].default for name in shared_options.RUN_SETTINGS
    }


@pytest.mark.parametrize("path", [("analyze",), ("capture",), ("sweep", "run")], ids=" ".join)
def test_the_options_of_a_run_are_the_fields_of_the_settings(path):
    typed = {option.name: option for option in options_of(COMMANDS[path]) if option.name in SETTINGS}
    assert list(typed) == [name for name in SETTINGS if name in typed]
    assert SETTINGS.keys() - typed.keys() == {"name"} | ({"heads"} if path == ("capture",) else set())
    for name, option in typed.items():
        assert option.help.removesuffix(" May be repeated.") == SETTINGS[name].help
    for name, text in {"seed": "-1", "batch_size": "0", "preprocessing": "none", "n": "0"}.items():
        with pytest.raises(click.BadParameter):
            typed[name].type.convert(text, typed[name], None)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_is_a_sentence_with_an_example_that_is_understood(path):
    text, _, examples = COMMANDS[path].help.partition("\b\n")
    assert re.match(r"[A-Z][^.]*\.", text), text
    lines = examples.replace("\\\n", " ").strip().splitlines()
    assert lines, "there is no example"
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "workbench"
        assert tuple(words[1 : len(path) + 1]) == path
        COMMANDS[path].make_context(path[-1], words[len(path) + 1 :])  # raises what it does not understand


def test_the_page_of_the_command_line_names_every_shared_option():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    counts = Counter(option.opts[-1] for command in COMMANDS.values() for option in options_of(command))
    for name, count in counts.items():
        short = SCHEME[name][0]
        assert count == 1 or f"`{name}" in page or f"`{short}`, `{name}" in page, name


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("workbench analyze gram", ["gram-spectrum"]),
        ("workbench analyze gram-spectrum -m bundled:digits-vi", ["digits-vit"]),
        ("workbench analyze gram-spectrum -s max_r", ["max_rank="]),
        ("workbench capture -i bundled:di", ["digits", "digits-train"]),
        ("workbench render attention_h", ["attention_heatmaps"]),
        ("workbench render --formats pdf,sv", ["pdf,svg"]),
        ("workbench study train digits --attention scaled-", ["scaled-free", "scaled-alpha", "scaled-exact"]),
        ("workbench study evaluate --protocol f", ["fgsm"]),
        ("workbench claims --paper t", ["teo2024"]),
        ("workbench sweep r", ["read", "run"]),
        ("workbench explore --theme ", ["paper", "talk"]),
    ],
)
def test_names_are_completed_in_bash(monkeypatch, line, expected):
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    shell = completion.Bash(cli.cli, {}, completion.NAME, completion.VARIABLE)
    assert shell.complete().splitlines() == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_or_installed(run, monkeypatch, tmp_path, shell):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    _, printed, _ = run("completion")
    assert "_WORKBENCH_COMPLETE" in printed
    status, said, err = run("completion", "--install")
    assert status == 0, err
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert str(path) in said
    assert path.read_text().strip() == printed.strip()
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    status, _, err = run("completion")
    assert status == 2
    assert "tcsh" in err


def test_a_script_for_bash_completes_in_bash(tmp_path):
    script = completion.Bash(cli.cli, {}, completion.NAME, completion.VARIABLE).source()
    ask = 'COMP_LINE="workbench cache i"; COMP_POINT=17; _workbench_completion workbench; echo "${COMPREPLY[@]}"'
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "info", done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-s", "noise=NaN"), "noise must be a number from 0"),
        (("-s", "noise=1", "-s", "noise=2"), "noise is set twice"),
        (
            ("-s", "nois=1"),
            "did you mean 'noise'? its options and their defaults: precision=float64, noise=0.1, ",
        ),
        (("-s", "noise"), "'noise' is not written KEY=VALUE"),
        (("-m", "bundled:digits-tost"), "takes --model once; got 2"),
        (("-n", "few"), "neither a whole number from 1 up nor the word all"),
    ],
)
def test_a_setting_that_cannot_be_says_what_can(run, tmp_path, words, message):
    status, _, err = run("analyze", "eigenvector-test", *BUNDLED, *words, "-o", tmp_path / "x.csv")
    assert status == 2
    assert message in " ".join(err.split())


def test_a_sweep_runs_every_value_of_a_key_and_reads_them_back(run, tmp_path):
    from workbench.apps.cli.sweep_commands import requested_analyses

    names = ("gram-spectrum", "token-similarity")
    asked, per_input = requested_analyses(names, [("standardize", "none"), ("standardize", "per-token")])
    assert asked == [
        ("gram-spectrum", {"standardize": "none"}),
        ("gram-spectrum", {"standardize": "per-token"}),
        ("token-similarity", {}),
    ]
    assert per_input is False
    asked, per_input = requested_analyses(names, [("gram_spectrum.null_samples", "4"), ("per_input", "true")])
    assert asked == [("gram-spectrum", {"null_samples": 4}), ("token-similarity", {})]
    assert per_input is True
    folder, out = tmp_path / "sweep", tmp_path / "sweep.csv"
    words = ("-a", "token-similarity", "-n", 3, "-o", folder)
    for _ in range(2):  # the second time there is nothing left to do
        status, said, err = run("sweep", "run", *BUNDLED, *words)
        assert status == 0, err
        assert "1 of 1 tasks done" in said
    status, _, err = run("sweep", "read", folder, "-a", "token-similarity", "-o", out)
    assert status == 0, err
    assert set(pd.read_csv(out)["metric"]) == {"token_cosine"}
    status, _, err = run("sweep", "read", folder, "-a", "gram-spectrum", "-o", out)
    assert status == 2
    assert "unknown analysis of the sweep" in err


def test_restart_moves_the_old_folder_aside(run, tmp_path):
    words = (
        "study",
        "train",
        "digits",
        "--limit",
        16,
        "--epochs",
        1,
        "--device",
        "cpu",
        "-o",
        tmp_path / "run",
    )
    assert run(*words)[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    status, _, err = run(*words, "--seed", 1)
    assert status == 2
    assert "seed" in err
    assert "--restart" in err
    assert run(*words, "--seed", 1, "--restart")[0] == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "run.before-1").iterdir()} == before


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


def test_the_help_has_every_command_in_a_line_below_a_heading(run):
    _, out, _ = run("--help")
    _, *groups = re.split(r"^(?=[A-Z][\w -]+:$)", out.partition("Options:")[2], flags=re.MULTILINE)
    lines = [line for group in groups for line in group.splitlines()[1:] if line.startswith("  ")]
    listed = [line.split()[0] for line in lines if not line.startswith("  Exit")]
    assert {*cli.cli.commands} - {*listed} == set()
    assert max(map(len, out.splitlines()[:4] + lines)) <= 80


def test_analyze_help_names_the_analyses_and_with_a_name_has_its_options(run):
    from workbench.runs.analyze import ANALYSES

    _, out, _ = run("analyze", "--help")
    assert {analysis.name for analysis in ANALYSES.values() if analysis.name not in out} == set()
    assert "max_rank=" not in out.partition("Analyses;")[2]
    for analysis in ANALYSES.values():
        _, out, _ = run("analyze", analysis.name, "--help")
        assert {option for option in analysis.options if f"{option}=" not in out} == set()
    _, out, _ = run("analyze", "subspaces", "--help")
    assert "subspaces --per pair" in out
    assert "max_rank=head_dim" not in out


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "tex"])
def test_analyze_writes_each_format(run, tmp_path, suffix):
    out = tmp_path / f"spectrum.{suffix}"
    status, said, err = run("analyze", "gram-spectrum", *BUNDLED, "-n", 2, "--layers", "0,2-3", "-o", out)
    assert status == 0, err
    assert out.name in said
    assert out.stat().st_size > 500


def test_the_word_none_means_what_an_option_says(run, tmp_path):
    out, plain = tmp_path / "none.csv", tmp_path / "plain.csv"
    spectrum = ("analyze", "gram-spectrum", *BUNDLED, "-n", 2, "--layers", 1)
    status, _, err = run(*spectrum, "-s", "standardize=none", "--set", "normalize=none", "-o", out)
    assert status == 0, err
    assert run(*spectrum, "-o", plain)[0] == 0
    assert out.read_bytes() == plain.read_bytes()
    rates = ("analyze", "coding-rate", *BUNDLED, "-n", 2, "--layers", 1, "-s", "eps=none", "-o", out)
    status, _, err = run(*rates)  # here none is no choice, but no value
    assert status == 0, err
    status, _, err = run(*spectrum, "-s", "max_rank=none", "-o", out)
    assert status == 2
    assert "max_rank must be 'head_dim', 'all' or a whole number from 1 up; got 'none'" in err


@pytest.mark.parametrize("name", sorted(ANALYSES))
def test_every_default_of_an_analysis_can_be_typed(name):
    known = ANALYSES[name].options
    typed = [(option, shared_options.written(rule.default)) for option, rule in known.items()]
    assert shared_options.read_settings(name, typed, known) == {
        option: rule.default for option, rule in known.items()
    }


@pytest.mark.parametrize(
    ("notebook", "meant"), [("eigenvector_test", "none"), ("gram_spectra", None)], ids=["text", "or None"]
)
def test_parameters_of_a_notebook_are_read_as_it_takes_them(run, monkeypatch, notebook, meant):
    given = {}

    def render(names, *, parameters, **options):
        given.update(parameters)
        return SimpleNamespace(failed=[])

    monkeypatch.setattr("workbench.apps.rendering.render", render)
    run(
        "render",
        notebook,
        "-m",
        "vit?depth=2",
        "-p",
        "standardize",
        "none",
        "-p",
        "n",
        "3",
        "-p",
        "layers",
        "2",
    )
    assert given == {"model": "vit?depth=2", "standardize": meant, "n": 3, "layers": "2"}


def test_options_of_an_analysis_are_set_by_key(run, tmp_path):
    out = tmp_path / "heads.csv"
    own = (
        "-s",
        "axis=tokens",
        "-s",
        "statistic=max",
        "-s",
        "per-head=true",
        "--set",
        "null_samples=0",
        "--heads",
        "0,2",
    )
    status, _, err = run("analyze", "value-similarity", *BUNDLED, "-n", 2, "--layers", 1, *own, "-o", out)
    assert status == 0, err
    frame = pd.read_csv(out)
    assert set(frame["axis"].dropna()) == {"tokens"}
    assert set(frame["head"]) == {0, 2}
    assert frame["null"].isna().all()
    means = tmp_path / "means.csv"
    status, _, err = run(
        "analyze", "value-similarity", *BUNDLED, "-n", 2, "-s", "null_samples=2", "-o", means
    )
    assert status == 0, err
    assert pd.read_csv(means)["head"].isna().all()


def test_claims_are_printed_and_written(run, tmp_path):
    out = tmp_path / "claims.csv"
    status, said, err = run(
        "claims", "--paper", "saritas2025", "-n", 2, "-s", "null_samples=2", "--untrained", 2, "-o", out
    )
    assert status == 0, err
    assert "verdict" in said
    frame = pd.read_csv(out)
    assert set(frame["paper"]) == {"saritas2025"}
    assert set(frame["verdict"]) <= {HOLDS, RANDOM_TOO, NOT_DIAGNOSTIC, FAILS, UNDECIDED, NOT_TESTED}
    assert NOT_DIAGNOSTIC in set(frame["verdict"])  # noise is unlike V̇ too


def test_a_table_has_a_row_per_interpretation_and_a_column_per_null(run, tmp_path):
    few = ("saritas2025", 1, "-m", "bundled:digits-vit", "-n", 2, "-s", "null_samples=2")
    status, printed, err = run("table", *few, "-o", tmp_path / "table.csv")
    assert status == 0, err
    rows = pd.read_csv(tmp_path / "table.csv")
    lines = [line for line in printed.splitlines() if line.startswith("│")]
    assert sum("MOC" in line for line in lines) == 3
    assert all(f"null: {null}" in printed for null in rows["null"].unique())
    assert f"{rows['measured'].iloc[-1]:.3g}" in lines[-1]
    assert "Table 1 does not list bundled:digits-vit" in err


def test_claims_take_all_texts_of_a_command_line(run, tmp_path):
    frames = []
    for number, few in enumerate([(), ("-n", "all")]):
        out = tmp_path / f"{number}.csv"
        status, _, err = run(
            "claims", "--paper", "chen2023", "-m", "bundled:prose-softmax", "--text", "The night is long.",
            "--text", "Bread rises in the warm kitchen.", *few, "-s", "null_samples=2", "--untrained", 0, "-o", out,
        )  # fmt: skip
        assert status == 0, err
        frames.append(pd.read_csv(out))
    assert frames[0].equals(frames[1])
    assert set(frames[0]["n"]) <= {0, 2}


def test_claims_of_a_checkpoint_are_its_own(run, tmp_path):
    few = ("claims", "--paper", "wu2025", "-n", 2, "--device", "cpu", "--untrained", 0)
    tables = {}
    for checkpoint in ("epoch-000", "epoch-030"):
        out = tmp_path / f"{checkpoint}.csv"
        status, said, err = run(*few, "-m", f"bundled:digits-vit@{checkpoint}", "--why", "-o", out)
        assert status == 0, err
        assert f"Claims on bundled:digits-vit@{checkpoint} with bundled:digits" in said
        tables[checkpoint] = pd.read_csv(out).set_index("analysis")
    run(*few, "-o", tmp_path / "last.csv")
    last = pd.read_csv(tmp_path / "last.csv").set_index("analysis")
    assert tables["epoch-030"]["measured"].equals(last["measured"])
    for analysis in ("coding-rate", "subspaces"):  # of activations, and of weights alone
        first, trained = (tables[name].loc[[analysis], "measured"].dropna() for name in tables)
        assert len(first)
        assert not first.equals(trained)
    status, _, err = run(*few, "-m", "bundled:digits-vit@epoch-777")
    assert status == 2
    assert "epoch-777" in err


def test_claims_about_several_weights_are_not_tested_on_a_checkpoint(run):
    few = ("claims", "--paper", "chen2023", "-n", 2, "-s", "null_samples=2", "--untrained", 0)
    verdicts = {}
    for end in ("", "@epoch-030"):
        status, said, err = run(*few, "-m", f"bundled:digits-primal{end}", "--json")
        assert status == 0, err
        (row,) = [
            row
            for row in json.loads(said)
            if row["interpretation"].startswith("effective rank of its kernel")
        ]
        verdicts[end] = row["verdict"], row["why"]
    assert verdicts[""][0] != NOT_TESTED
    assert verdicts["@epoch-030"][0] == NOT_TESTED
    assert "bundled:digits-primal@epoch-030 names one" in verdicts["@epoch-030"][1]


def test_pilot_runs_are_offered_for_the_data_of_claims_only(run):
    status, _, err = run("study", "records", "learned", "--name", "photo")
    assert status == 2
    assert "unknown embedded data of claims 'photo'" in err
    assert "photos" not in err


def test_claims_print_the_rows_that_count_and_their_reasons(run, monkeypatch):
    few = ("claims", "--paper", "abdullaev2025", "-n", 2, "-s", "null_samples=2", "--untrained", 0)
    monkeypatch.setattr(workbench, "claims", cache(workbench.claims))  # measured once, printed five times
    printed = {more: run(*few, *more)[1] for more in ((), ("--primary",), ("--why",))}
    rows = {more: json.loads(run(*few, *more, "--json")[1]) for more in ((), ("--primary",))}
    assert rows["--primary",] == [row for row in rows[()] if row["primary"] and not row["kind"]]
    assert 0 < len(rows["--primary",]) < len(rows[()])
    assert [text.count("abdullaev2025") for text in printed.values()] == [
        len(rows[()]),
        len(rows["--primary",]),
        len(rows[()]),
    ]
    assert "against" in printed["--why",]
    assert "against" not in printed["--primary",]
    table, *reasons = printed["--why",].split("\n\n")
    assert "against" not in table
    assert len(reasons) == len(rows[()])
    for reason, row in zip(reasons, rows[()], strict=True):
        assert reason.startswith(f"{row['place']}, {row['claim']}")
        assert row["why"] in reason


@pytest.mark.parametrize("path", [("analyze",), ("capture",), ("sweep", "run"), ("claims",)], ids=" ".join)
def test_commands_that_run_a_model_take_where_it_runs(path):
    """What `workbench.analyze` has for loading a model; the sampling of heads and layers is not for claims."""
    names = {option.opts[-1] for option in options_of(COMMANDS[path])}
    assert {
        "--model",
        "--inputs",
        "-n",
        "--seed",
        "--batch-size",
        "--device",
        "--dtype",
    } <= names


def test_the_same_seed_gives_the_same_numbers_and_another_does_not(run, tmp_path):
    frames = []
    for number, seed in enumerate([5, 5, 6]):
        out = tmp_path / f"{number}.csv"
        run("analyze", "attention-map", *BUNDLED, "-n", 3, "--seed", seed, "--layers", "1", "-o", out)
        frames.append(pd.read_csv(out))
    assert frames[0].equals(frames[1])
    assert not frames[0].equals(frames[2])


def test_a_capture_file_feeds_analyze_and_compares_equal_to_itself(run, tmp_path):
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for out in (first, second):
        status, _, err = run("capture", *BUNDLED, "-n", 2, "-o", out)
        assert status == 0, err
    status, said, _ = run("compare", first, second)
    assert status == 0
    assert "the same" in said
    out = tmp_path / "from-file.csv"
    status, _, err = run("analyze", "gram-spectrum", "--qkv", first, "-o", out)
    assert status == 0, err
    direct = tmp_path / "direct.csv"
    run("analyze", "gram-spectrum", *BUNDLED, "-n", 2, "-o", direct)
    written, expected = (pd.read_csv(path) for path in (out, direct))
    assert len(written) == len(expected) > 100
    columns = ["layer", "head", "metric", "rank", "input", "value"]
    for frame in (written, expected):
        frame["input"] = frame["input"].factorize()[0]  # a file has no names of inputs
    # row by row, so that a value of another layer or head is found
    pd.testing.assert_frame_equal(written[columns], expected[columns], rtol=1e-9)


def test_compare_ends_in_1_where_captures_differ(run, tmp_path):
    for name, checkpoint in (("a", "epoch-030"), ("b", "epoch-000")):
        status, _, err = run(
            "capture",
            "-m",
            f"bundled:digits-vit@{checkpoint}",
            "-i",
            "bundled:digits",
            "-n",
            2,
            "-o",
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


def test_names_restrict_a_list_and_the_word_list_names_the_commands_that_list(run):
    _, out, _ = run("metrics", "mCE", "--json")
    assert [row["metric"] for row in json.loads(out)] == ["mCE"]
    _, out, _ = run("notebooks", "gram_spectra", "--json")
    assert [row["notebook"] for row in json.loads(out)] == ["gram_spectra"]
    assert run("notebooks", "gram_spectre")[0] == 2
    status, _, message = run("list")
    assert status == 2
    assert "models, analyses, metrics, notebooks" in message


def test_doctor_reports_what_is_here(run):
    status, out, _ = run("doctor", "--json")
    found = {row["check"]: row["state"] for row in json.loads(out)}
    assert status == 0
    assert found["bundled models"] == found["notebooks"] == found["torch"] == "ok"


WRONG = {
    "unknown analysis": (("analyze", "gram-spectrun", *BUNDLED, "-o", "x.csv"), "gram-spectrum"),
    "unknown option": (("analyze", "gram-spectrum", *BUNDLED, "-s", "max_rnk=3", "-o", "x.csv"), "max_rank"),
    "ill-typed option": (("analyze", "gram-spectrum", *BUNDLED, "-s", "max_rank=few", "-o", "x.csv"), "few"),
    "unknown model": (("capture", "-m", "bundled:digit", *BUNDLED[2:], "-o", "x.safetensors"), "digits-vit"),
    "unknown input": (("capture", *BUNDLED[:2], "-i", "bundled:digit", "-o", "x.safetensors"), "digits"),
    "no model": (("analyze", "gram-spectrum", "-o", "x.csv"), "model"),
    "layer out of range": (("analyze", "gram-spectrum", *BUNDLED, "--layers", "9", "-o", "x.csv"), "9"),
    "unknown suffix": (("analyze", "gram-spectrum", *BUNDLED, "-o", "x.xlsx"), ".parquet"),
    "missing file": (("analyze", "gram-spectrum", "--qkv", "none.safetensors", "-o", "x.csv"), "none.safetensors"),
    "unknown notebook": (("render", "gram_spectrum"), "gram_spectra"),
    "unknown parameter": (("render", "gram_spectra", "-p", "modle", "x"), "model"),
    "ill-typed parameter": (("render", "gram_spectra", "-p", "n", "many"), "many"),
    "a truth for a name": (("render", "attention_heatmaps", "-p", "text_model", "false"), "-r text_model false"),
    "infinite tolerance": (("compare", "a.npz", "b.npz", "--tolerance", "inf"), "is not a finite number"),
    "a size that is none": (("explore", "--save", "a.html", "--max-size", "nan"), "is not a finite number"),
    "claims on one input": (("claims", "-n", "1"), "n must be a whole number from 2 up, 'all', or none"),
    "claims on one text": (("claims", "-m", "bundled:prose-softmax", "--text", "A."), "give 2 or more"),
    "claims on texts and inputs": (("claims", "-i", "bundled:prose", "--text", "A."), "give one of the two"),
    "a share of a sweep": (
        ("sweep", "run", "-m", "bundled:digits-vit", "-i", "bundled:digits", "-a", "token-similarity", "--part", "3/2",
         "-o", "sweep"),
        "part must be I/N with I from 1 to N, such as 2/8; got '3/2'",
    ),
    "no inputs": (("render", "gram_spectra", "--check", "-p", "n", "0"), "n of notebook gram_spectra is 0"),
    "no formats": (("render", "gram_spectra", "--formats", ""), "one or more of pdf, svg, png, html"),
    "transcribed table": (("table", "wu2025", "2", "-m", "bundled:digits-tost"), "transcribed only"),
    "unknown paper": (("claims", "--paper", "teo2025"), "teo2024"),
    "comparison in another format": (("compare", "a.safetensors", "b.safetensors", "-o", "c.json"), ".csv"),
    "no checkpoint": (("study", "evaluate", "-m", "runs/x.safetensors"), "no checkpoint at runs/x.safetensors"),
    "no such port": (("explore", "--port", "99999"), "65535"),
    "device without a page": (("explore", "--device", "cpu"), "add --save FILE.html"),
    "no such checkpoint": (("explore", "--save", "x.html", "-m", "bundled:digits-vit@epoch-999"), "epoch-030"),
    "no checkpoints": (("explore", "--save", "x.html", "-m", "digits-tost", "--checkpoints"), "no checkpoints to go"),
    "no such device": (("explore", "--save", "x.html", "--device", "nowhere"), "nowhere"),
    "claims in another format": (("claims", "-o", "claims.parquet"), ".csv"),
    "unknown command": (("analyse",), "analyse"),
    "unknown task": (("study", "train", "digit"), "digits"),
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
        cli.main(["analyze", "gram-spectrun", *BUNDLED, "-o", "x.csv", "--debug"])


def test_a_result_that_cannot_be_written_ends_in_3(run, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way of a folder")
    status, _, err = run("analyze", "gram-spectrum", *BUNDLED, "-n", 1, "-o", blocked / "x.csv")
    assert status == 3
    assert str(blocked) in err


TO_A_FILE = {
    "analyze": ("gram-spectrum", *BUNDLED, "-o", "x.csv"),
    "capture": (*BUNDLED, "-o", "x.safetensors"),
    "claims": ("-o", "x.csv"),
    "table": ("saritas2025", 1, "-m", "bundled:digits-vit", "-o", "x.csv"),
    "compare": ("a.safetensors", "b.safetensors", "-o", "x.csv"),
    "study evaluate": ("-m", "bundled:digits-vit", "-o", "x.csv"),
}


@pytest.mark.parametrize("command", TO_A_FILE)
def test_a_place_that_takes_no_file_is_refused_before_the_work(run, tmp_path, monkeypatch, command):
    def work(*_, **__):
        pytest.fail("the work began")

    for name in (
        "runs.analyze.analyze",
        "runs.analyze.capture_inputs",
        "claims",
        "table",
        "captures.compare",
        "studies.evaluation.evaluate",
    ):
        monkeypatch.setattr(f"workbench.{name}", work)
    blocked = tmp_path / "file"
    blocked.write_text("in the way of a folder")
    *arguments, out = TO_A_FILE[command]
    status, _, err = run(*command.split(), *arguments, blocked / "folder" / out)
    assert status == 3
    assert f"{blocked} is no folder" in err
    assert list(tmp_path.iterdir()) == [blocked]


def test_capture_says_which_sites_the_attention_has(run, tmp_path):
    out = tmp_path / "tost.safetensors"
    status, said, err = run(
        "capture",
        "-m",
        "bundled:digits-tost",
        *BUNDLED[2:],
        "-n",
        1,
        "--sites",
        "q,head_out",
        "-o",
        out,
    )
    assert status == 0
    assert "sites q, head_out, membership written" in said
    assert "only layers 4, 5 of this attention has q" in err


def test_interruption_ends_in_130(run, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.runs.analyze.analyze", interrupted)
    status, _, err = run("analyze", "gram-spectrum", *BUNDLED, "-o", tmp_path / "x.csv")
    assert status == 130
    assert "kept" in err


def test_efficiency_within_no_time_says_so_and_keeps_a_table(run, tmp_path):
    out = tmp_path / "study"
    status, said, err = run("study", "efficiency", "--max-time", "0.001s", "--sweep", "causal", "-o", out)
    assert status == 0, err
    assert "1 thread" in said
    assert "18 of 18 points lie beyond the budget of 1.66667e-05 minutes" in err
    assert pd.read_csv(out / "points.csv").empty
    status, _, err = run("study", "efficiency", "--sweep", "tokns")
    assert status == 2
    assert err == "error: unknown sweep 'tokns'; did you mean 'tokens'?\n"


def test_a_table_prints_square_brackets_as_they_are(capsys):
    print_table([{"advice": 'pip install "FOLDER[figures]"'}], "Doctor [of this machine]")
    printed = capsys.readouterr().out
    assert 'pip install "FOLDER[figures]"' in printed
    assert "Doctor [of this machine]" in printed


def test_a_saved_page_holds_every_text(run, tmp_path):
    texts = "The tide went out.", "A cat sat.", "Bread is baked."
    page = "explore", "--save", tmp_path / "x.html", "-m", "bundled:prose-softmax"
    for chosen, expected in ((), texts), (("--index", 1), texts[1:2]):
        status, _, err = run(*page, *(part for text in texts for part in ("--text", text)), *chosen)
        assert status == 0, err
        inputs = bundle_of((tmp_path / "x.html").read_text(encoding="utf-8")).header.inputs
        assert ["".join(each.labels).replace("[PAD]", "") for each in inputs] == [*expected]


def test_a_saved_page_shows_the_checkpoint_asked_for_on_its_device(run, tmp_path, monkeypatch):
    from workbench.models import loading

    devices, load = [], loading.load
    monkeypatch.setattr(
        loading, "load", lambda *names, **asked: devices.append(asked["device"]) or load(*names, **asked)
    )
    status, _, err = run(
        "explore", "--save", tmp_path / "x.html", "-m", "bundled:digits-vit@epoch-000", "--device", "cpu"
    )
    assert status == 0, err
    assert devices == ["cpu"]
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert bundle_of(page).header.model.checkpoint == "epoch-000"
    assert bundle_of(page).header.inputs[0].address["model"] == "bundled:digits-vit@epoch-000"


def test_every_kind_of_error_has_the_exit_status_of_the_page():
    rows = re.findall(
        r"^\| (\d+) \| (.*) \|$",
        (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    meanings = {int(status): words for status, words in rows}
    kinds = {
        WorkbenchError: "part of the work failed",
        InputError: "the request was wrong",
        MissingResource: "this machine lacks",
    }
    assert all(meanings[kind.exit_code].startswith(words) for kind, words in kinds.items())
