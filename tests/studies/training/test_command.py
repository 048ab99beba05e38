"""``workbench study train`` from the command line."""

import json

import pytest

from workbench.apps import cli


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as left:
            cli.main(["study", "train", *map(str, words)])
        return left.value.code, *capsys.readouterr()

    return call


def test_a_variant_from_the_command_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["digits", "--attention", "rpc-sym", "--layers", "1,2", "-s", "num_iter=2"]
    words += ["--boost", "--limit", 32, "--epochs", 1, "--seed", 3, "--device", "cpu"]
    status, out, err = run(*words)
    assert status == 0, err
    folder = tmp_path / "runs" / "digits-rpc-sym-boost-seed3"
    assert str(folder.relative_to(tmp_path)) in out
    about = json.loads((folder / "model.json").read_text())
    assert (about["attention"], about["boost"], about["attention_layers"]) == ("rpc-sym", True, [1, 2])
    assert about["attention_options"] == {"num_iter": 2, "lambd": 4.0, "convention": "as_published"}
    assert about["command"] == (
        "workbench study train digits --attention rpc-sym --layers 1,2 --set num_iter=2 --boost --limit 32 "
        "--seed 3 --epochs 1"
    )


def test_a_recipe_file_and_a_text_of_ones_own(run, tmp_path):
    text, recipe, out = tmp_path / "my text.txt", tmp_path / "tiny.toml", tmp_path / "run"
    text.write_text("the cat sat on the mat. " * 40)
    recipe.write_text(
        'task = "text"\nepochs = 1\nbatch_size = 8\nlearning_rate = 1e-3\n[architecture]\nname = "lm"\n'
        "context = 9\nembed_dim = 6\ndepth = 1\nnum_heads = 2\n"
    )
    status, said, err = run("text", "--data", text, "--recipe", recipe, "-o", out, "--device", "cpu")
    assert status == 0, err
    assert "test perplexity" in said
    about = json.loads((out / "model.json").read_text())
    assert f"--recipe {recipe} --data '{text}'" in about["command"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("digits", "--attention", "rpc"), "rpc-sym"),
        (("digits", "--attention", "tssa", "-s", "lambd=3"), "convention=as_published"),
        (("digits", "--layers", "0"), "name a variant as attention"),
        (("digits", "--attention", "tssa", "--layers", "0;2"), "is neither a number nor a range"),
        (("digits", "--data", "here"), "has its own data"),
        (("images",), "needs data (--data): FOLDER with train/CLASS/IMAGE"),
        (("text", "--data", "none.txt"), "there is no none.txt"),
        (("digits", "--recipe", "prose"), "the recipe is for task 'prose', not 'digits'"),
        (("digits", "--recipe", "none.toml"), "no recipe at none.toml"),
        (("prose", "--attention", "xca"), "has no causal form"),
    ],
)
def test_what_cannot_be_asked_for(run, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*words, "--device", "cpu")
    assert status == 2, err
    assert expected in err
    assert "Traceback" not in out + err


def test_help_lists_tasks_and_variants(run):
    status, out, _ = run("--help")
    assert status == 0
    assert "wikitext-103" in out
    assert "rpc-sym-asym" in out
    assert "low_rank" in out
