"""Claims about models at hand: those on record are read where just these are asked for, all others measured."""

import json

import pandas as pd
import pytest

import workbench.papers.claims
from tests.numbers.compare import END_TO_END
from workbench.apps import cli
from workbench.apps.rendering.notebooks import read_notebook
from workbench.core.errors import InputError, MissingResource
from workbench.core.paths import bundled_notebooks
from workbench.papers.published import stated_claims
from workbench.studies import claims_measured, records
from workbench.studies.claims_measured import QUESTIONS, SEED, measured_claims
from workbench.studies.records import claims_record

CHEAP = QUESTIONS[2]  # seconds


class Measured(Exception):
    """What `workbench.claims` is in the place of minutes."""


@pytest.fixture
def no_measuring(monkeypatch):
    def claims(paper, model, inputs, *, n, **settings):
        raise Measured((paper, model, inputs, n), settings)

    monkeypatch.setattr(workbench.papers.claims, "claims", claims)


def test_what_the_notebook_asks_for_by_itself_is_read_and_not_measured(no_measuring):
    asked = read_notebook(bundled_notebooks()["claims"]).filled({})
    own = [(asked["paper"], asked["model"], asked["inputs"], asked["n"])]
    own += [(asked["paper"], asked["text_model"], asked["text_inputs"], asked["text_n"])]
    own += [(paper, model, asked["inputs"], asked["n"]) for paper, model in asked["mechanisms"].items()]
    assert own == [*QUESTIONS]
    frame = measured_claims(own, seed=asked["seed"], null_samples=asked["null_samples"], again=asked["again"])
    assert [*frame["model"].unique()] == [question.model for question in QUESTIONS]
    assert frame.attrs["records"] == claims_record().attrs["records"]
    assert frame.attrs["absent"] == {}
    assert {run["model"]["spec"] for run in frame.attrs["provenance"] if run.get("model")} >= {
        "bundled:digits-vit",
        "hf:sentence-transformers/all-MiniLM-L6-v2",
    }
    assert all(run["versions"]["torch"] for run in frame.attrs["provenance"])


OF_ALL_PAPERS = QUESTIONS[0]


@pytest.mark.parametrize("question", [CHEAP, OF_ALL_PAPERS._replace(paper="chen2023")])
def test_one_model_measured_anew_is_as_on_record(question):
    on_record, anew = (measured_claims([question], again=again) for again in (False, True))
    assert on_record.attrs["records"]
    assert not anew.attrs["records"]
    assert len(anew) > 5
    numbers = [name for name in anew if pd.api.types.is_float_dtype(on_record[name])]
    near = {"rtol": END_TO_END.relative, "atol": END_TO_END.floor, "check_dtype": False}
    pd.testing.assert_frame_equal(on_record[numbers], anew[numbers].astype(float), **near)
    texts = [name for name in anew if name not in [*numbers, "why"]]  # which holds digits of these numbers
    pd.testing.assert_frame_equal(
        on_record[texts].astype(object).fillna(""), anew[texts].astype(object).fillna("")
    )
    assert on_record.attrs["notes"] == anew.attrs["notes"]
    weights = [claims_measured._weights(frame.attrs["provenance"]) for frame in (on_record, anew)]
    assert weights[0] == weights[1]


def test_a_record_of_all_papers_answers_a_question_about_one(no_measuring, monkeypatch):
    everything = measured_claims([OF_ALL_PAPERS])
    papers = [*everything["paper"].unique()]
    assert len(papers) == 5
    for paper in papers:
        frame = measured_claims([OF_ALL_PAPERS._replace(paper=paper)])
        pd.testing.assert_frame_equal(
            frame, everything[everything["paper"] == paper].reset_index(drop=True), check_names=False
        )
        analyses = {run["analysis"] for run in frame.attrs["provenance"]}
        assert analyses <= {*frame["analysis"]}
        assert {*frame.attrs["notes"]} <= {*everything.attrs["notes"]}
    stated = stated_claims

    def changed(paper):
        frame = stated(paper)
        return frame.assign(threshold=frame["threshold"].mask(frame["paper"] == "wu2025", "7"))

    monkeypatch.setattr(claims_measured, "stated_claims", changed)
    assert len(measured_claims([OF_ALL_PAPERS._replace(paper="saritas2025")]))
    for paper in ("wu2025", None):
        with pytest.raises(Measured):
            measured_claims([OF_ALL_PAPERS._replace(paper=paper)])


def test_the_published_numbers_on_record_are_those_of_today():
    frame = claims_record()
    for question in QUESTIONS:
        rows = frame[frame["model"] == question.model].reset_index(drop=True)
        stated = claims_measured._stated(question.paper).to_dict("records")
        assert len(rows) == len(stated)
        for claim, published in zip(stated, rows["published"], strict=True):
            try:
                today = workbench.papers.claims.published_value(claim, question.model)
            except workbench.papers.claims.NotTested:
                today = float("nan")
            assert today == published or (today != today and published != published), claim


@pytest.mark.parametrize(
    ("question", "settings"),
    [
        (CHEAP._replace(n=24), {}),
        (CHEAP._replace(paper=None), {}),
        (CHEAP._replace(inputs="bundled:digits-train"), {}),
        (CHEAP._replace(model="bundled:digits-tost-ista"), {}),
        (CHEAP, {"seed": 1}),
        (CHEAP, {"null_samples": 19}),
        (CHEAP, {"untrained": 5}),
        (CHEAP, {"again": True}),
    ],
)
def test_what_is_not_on_record_is_measured(no_measuring, question, settings):
    with pytest.raises(Measured) as reached:
        measured_claims([question], **settings)
    asked, given = reached.value.args
    assert asked == question
    usual = {"seed": 0, "null_samples": 20, "untrained": 6}
    assert {name: given[name] for name in usual} == usual | {
        name: value for name, value in settings.items() if name in usual
    }


def test_untrained_weights_on_record_are_named_by_their_seed_and_not_compared():
    """Another version of a library may draw others from the same seed."""
    frame = measured_claims([CHEAP])
    checkpoints = {run["model"]["checkpoint"] for run in frame.attrs["provenance"]}
    assert checkpoints >= {f"random-{seed}" for seed in range(1, 7)}
    compared = {checkpoint for _, checkpoint, _ in claims_measured._weights(frame.attrs["provenance"])}
    assert compared == {name for name in checkpoints if not name.startswith("random")}
    counted = frame[frame["kind"].isin(["", "question"]) & frame["measured"].notna()]
    assert counted["untrained_n"].eq(6).all()
    assert counted["untrained"].notna().all()


def test_other_weights_and_other_claims_are_measured_and_other_words_are_not(no_measuring, monkeypatch):
    stated = stated_claims
    monkeypatch.setattr(claims_measured, "stated_claims", lambda paper: stated(paper).assign(label="Say it"))
    assert {*measured_claims([CHEAP])["label"]} == {"Say it"}
    with monkeypatch.context() as patch:
        patch.setattr(claims_measured, "stated_claims", lambda paper: stated(paper).assign(threshold="7"))
        with pytest.raises(Measured):
            measured_claims([CHEAP])
    with monkeypatch.context() as patch:  # dates decide families, and the record's Holm is of others
        each = [f"2026-12-{day % 28 + 1:02}" for day in range(500)]

        def dated(paper):
            return stated(paper).assign(stated=each[: len(stated(paper))])

        patch.setattr(claims_measured, "stated_claims", dated)
        with pytest.raises(Measured):
            measured_claims([CHEAP])
    monkeypatch.setattr(claims_measured, "_weights_sha256", lambda spec, checkpoint: "ab" * 32)
    with pytest.raises(Measured):
        measured_claims([CHEAP])


def test_without_the_weights_the_record_stands_and_says_so(monkeypatch):
    def absent(*model, **settings):
        raise MissingResource("install it\nas the page says")

    monkeypatch.setattr(claims_measured, "_weights_sha256", absent)
    monkeypatch.setattr(workbench.papers.claims, "claims", absent)
    frame = measured_claims([QUESTIONS[1]])
    assert len(frame) > 100
    assert any("is not on this machine" in note for note in frame.attrs["notes"])
    with pytest.raises(MissingResource, match=r"^all-MiniLM-L6-v2: install it$"):
        measured_claims([QUESTIONS[1]], again=True)
    frame = measured_claims([QUESTIONS[1]._replace(n=7), CHEAP])
    assert frame.attrs["absent"] == {"all-MiniLM-L6-v2": "install it"}


def test_the_command_writes_a_record_and_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    first, second = CHEAP._replace(n=2), QUESTIONS[3]._replace(n=2)
    monkeypatch.setattr(claims_measured, "NULL_SAMPLES", 2)
    monkeypatch.setattr(claims_measured, "UNTRAINED", 2)
    monkeypatch.setattr(claims_measured, "QUESTIONS", (first, second))
    whole = workbench.papers.claims.claims

    def interrupted(model, **settings):
        if model == second.model:
            raise KeyboardInterrupt
        return whole(model=model, **settings)

    def command():
        with pytest.raises(SystemExit) as left:
            cli.main(["study", "records", "claims", "-o", str(tmp_path), "--work", str(tmp_path / "work")])
        return left.value.code

    monkeypatch.setattr(workbench.papers.claims, "claims", interrupted)
    assert command() == 130
    assert not (tmp_path / "records").exists()
    asked = []
    monkeypatch.setattr(
        workbench.papers.claims,
        "claims",
        lambda model, **settings: asked.append(model) or whole(model=model, **settings),
    )
    assert command() == 0
    assert asked == [second.model]
    assert "2 models" in capsys.readouterr().out
    about = json.loads((tmp_path / "records" / "claims" / "record.json").read_text())
    assert about["settings"] == {"null_samples": 2, "untrained": 2}
    assert [call["n"] for call in about["calls"]] == [2, 2]
    monkeypatch.setattr(records.paths, "data_dir", lambda: tmp_path)
    frame = claims_record()
    assert [*frame["model"].unique()] == [first.model, second.model]
    assert frame.attrs["settings"] == {"seed": SEED, "null_samples": 2, "untrained": 2}
    assert frame["untrained_n"].max() == 2
    frame.to_csv(tmp_path / "records" / "claims" / "claims.csv", index=False)
    text = (tmp_path / "records" / "claims" / "claims.csv").read_text()
    (tmp_path / "records" / "claims" / "claims.csv").write_text(text.replace("holds", "fails"))
    with pytest.raises(InputError, match="not the one"):
        claims_record()
