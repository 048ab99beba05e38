"""Embedded tasks: differences from the baseline with their interval over seeds, and sentences about them."""

import pandas as pd
import pytest

from tests.figures.study import titles
from workbench.core.errors import InputError
from workbench.core.intervals import welch_interval
from workbench.studies.figures import embedded_differences_figure, embedded_finding, embedded_grid
from workbench.studies.figures.embedded_tasks import NAMES
from workbench.studies.findings import ablation_findings, embedded_findings
from workbench.studies.records import scores_by_epoch

FINAL = {
    "softmax": [0.6, 0.7, 0.8],
    "softmax-shuffled": [0.5],
    "primal": [0.2, 0.25, 0.3],
    "primal-all s=20 η=0.1": [0.4],
    "primal-all s=30 η=0.5": [0.45],
}


def record(metric="accuracy"):
    rows = [
        {"variant": "majority", "attention": "", "seed": None, "epoch": 0, "value": 0.3},
        *(
            {"variant": variant, "attention": "x", "seed": seed, "epoch": epoch, "value": value * epoch / 2}
            for variant, values in FINAL.items()
            for seed, value in enumerate(values)
            for epoch in (0, 2)
        ),
    ]
    frame = pd.DataFrame(rows).assign(data="made", split="test", metric=metric, unit="")
    return frame.astype({"seed": "Int64"})


def drawn(figure, axis="x"):
    """Rows of a panel → value, low and high of their marker."""
    (markers,) = [trace for trace in figure.data if trace.xaxis == axis and trace.error_x.array is not None]
    ends = zip(markers.x, markers.error_x.arrayminus, markers.error_x.array, strict=True)
    return {words: (x, x - down, x + up) for words, (x, down, up) in zip(markers.text, ends, strict=True)}


def test_a_marker_is_the_difference_from_the_baseline_with_welchs_interval_over_seeds():
    markers = drawn(embedded_differences_figure(record()))
    interval = welch_interval(*(100 * pd.Series(FINAL[name]) for name in ("primal", "softmax")))
    assert markers[NAMES["primal"]] == pytest.approx((-45, interval.low, interval.high))
    assert len(markers) == 1  # one seed has no interval, and no marker


def test_a_baseline_has_a_row_with_its_score_and_single_seeds_have_none():
    figure = embedded_differences_figure(record())
    rows = [f"<i>{NAMES['softmax']}</i>", NAMES["primal"]]
    assert [*figure.layout.yaxis.ticktext] == rows
    (score,) = [note for note in figure.layout.annotations if note.text == "70.0 %"]
    assert score.y == 0


def test_a_mechanism_is_compared_with_its_own_baseline():
    frame = record()
    symmetric = frame[frame["variant"] == "softmax"].assign(variant="softmax-sym")
    symmetric["value"] -= 0.05 * symmetric["epoch"]
    more = symmetric.assign(variant="rpc-sym", value=symmetric["value"] + 0.02 * symmetric["epoch"])
    figure = embedded_differences_figure(
        pd.concat([frame, symmetric, more]), baselines={"rpc-sym": "softmax-sym"}
    )
    assert drawn(figure)[NAMES["rpc-sym"]][0] == pytest.approx(4)
    assert [*figure.layout.yaxis.ticktext][-2:] == [f"<i>{NAMES['softmax-sym']}</i>", NAMES["rpc-sym"]]


def test_a_difference_whose_interval_holds_zero_has_an_open_marker():
    frame = record()
    near = frame[frame["variant"] == "softmax"].assign(
        variant="tssa", value=lambda rows: rows["value"] - 0.01
    )
    (markers,) = [
        trace
        for trace in embedded_differences_figure(pd.concat([frame, near])).data
        if trace.error_x.array is not None
    ]
    open_rows = [
        words for words, fill in zip(markers.text, markers.marker.color, strict=True) if fill == "white"
    ]
    assert open_rows == [NAMES["tssa"]]


def test_conditions_are_panels_below_the_headings_of_their_data():
    parts = [
        record().assign(data=f"{data}, {condition}") for data in ("a", "b") for condition in ("clean", "PGD")
    ]
    figure = embedded_differences_figure(pd.concat(parts))
    assert [words for words in titles(figure) if "%" not in words] == ["clean", "PGD"]
    headings = [words for words in figure.layout.yaxis.ticktext if words.startswith("<b>")]
    assert headings == ["<b>a</b>", "<b>b</b>"]


def test_the_best_mechanism_comes_first_by_its_mean_difference_over_panels():
    scores = {"high": {"softmax": 0.9, "tssa": 0.8, "primal": 0.7}, "low": {"softmax": 0.1, "tssa": 0.4}}
    rows = [
        {"data": data, "variant": variant, "seed": seed, "value": value + 0.01 * seed}
        for data, panel in scores.items()
        for variant, value in panel.items()
        for seed in range(3)
    ]
    frame = pd.DataFrame(rows).assign(attention="x", split="test", metric="accuracy", epoch=4, unit="")
    order = [NAMES[name] for name in ("tssa", "primal")]
    assert [*embedded_differences_figure(frame).layout.yaxis.ticktext][1:] == order
    losses = embedded_differences_figure(frame.assign(metric="loss"), "loss")
    assert [*losses.layout.yaxis.ticktext][1:] == order[::-1]


def test_scores_by_epoch_are_means_over_the_seeds_of_test_rows():
    frame = record()
    more = frame.assign(data="longer", epoch=frame["epoch"] * 5)  # 10 epochs, recorded after none and ten
    halves = more[more["epoch"] == 10].assign(epoch=3, value=lambda rows: rows["value"] - 0.1)
    training = frame.assign(split="train", value=0.9)
    table = scores_by_epoch(pd.concat([training, frame, more, halves]), shares=(0.3, 1), digits=2)
    assert table["made"].columns.tolist() == [2]
    assert table["longer"].columns.tolist() == [3, 10]
    assert table.loc["softmax"].tolist() == [0.6, 0.7, 0.7]  # "longer" comes before "made"
    assert table.loc["primal", ("longer", 3)] == 0.15
    assert "majority" not in table.index
    usual = scores_by_epoch(pd.concat([training, frame, more, halves, halves.assign(epoch=1)]))
    assert usual["longer"].columns.tolist() == [1, 3, 10]  # a tenth, three tenths and all of the training


def test_the_grid_holds_the_runs_over_eta_and_s():
    grid = embedded_grid(record())
    assert grid[["s", "eta", "value"]].values.tolist() == [[20, 0.1, 0.4], [30, 0.5, 0.45]]


def test_other_frames_are_refused():
    for read in (embedded_differences_figure, scores_by_epoch):
        with pytest.raises(InputError, match="mean_iou"):
            read(record(), "mean_iou")
    with pytest.raises(InputError, match="no axis"):
        embedded_differences_figure(record(), "f1")
    alone = record()
    with pytest.raises(InputError, match="no mechanism of several seeds stands"):
        embedded_differences_figure(alone[alone["variant"].isin(["majority", "primal"])])


def test_findings_name_what_has_not_learned_and_what_is_significant():
    (sentence,) = embedded_findings(record(), "accuracy")
    assert "mean over 3 seeds with 95 % CI: softmax 70.0 [45.2, 94.8] %" in sentence
    assert "primal −45.0" in sentence
    assert "(significant)" in sentence
    assert "Not learned: primal." in sentence
    assert "Not significantly better than shuffled: softmax, primal." in sentence
    (sentence,) = embedded_findings(record("loss"), "loss")  # smaller is better
    assert "of the trivial predictor 0.300 nats" in sentence
    assert "Not significantly better than shuffled: softmax." in sentence


def test_a_data_set_that_no_mechanism_learns_is_not_drawn_and_titles_have_the_level_of_chance():
    guessed = record().assign(data="guessed")
    guessed.loc[guessed["variant"] == "majority", "value"] = 0.5  # softmax: 0.45 to 0.95
    figure = embedded_differences_figure(pd.concat([record(), guessed]))
    assert [words for words in titles(figure) if "chance" in words] == ["made<br>chance 30 %"]


def test_the_finding_names_the_largest_significant_differences_of_the_figure():
    """Primal is 45 points below softmax; shuffled has one seed; a baseline is not compared with itself."""
    sentence = embedded_finding(record(), "accuracy")
    assert sentence.startswith(
        f"Significant differences from the baseline are largest with {NAMES['primal']}: −45.0 points (made). "
        "1 of 1 are significant (about 0.05 expected under the null)."
    )
    assert "−0.450 nats (made)" in embedded_finding(record("loss"), "loss")
    more = record()
    more.loc[(more["variant"] == "primal") & (more["seed"] == 0), "value"] += 0.4
    assert embedded_finding(more, "accuracy") == (
        f"None of 1 differences of {NAMES['primal']} from the baseline is significant "
        "(about 0.05 expected under the null)."
    )


def arena(data, mechanisms=14):
    """A record of as many mechanisms as the Long Range Arena's, of which each fourth has three seeds."""
    names = [*NAMES][:mechanisms]
    rows = [
        {
            "data": name,
            "variant": variant,
            "seed": seed,
            "epoch": epoch,
            "value": 0.3 + 0.04 * place + 0.01 * seed,
        }
        for name in data
        for place, variant in enumerate(names)
        for seed in range(1 if place % 4 else 3)
        for epoch in (0, 3)
    ]
    rows += [{"data": name, "variant": "majority", "seed": None, "epoch": 0, "value": 0.1} for name in data]
    frame = pd.DataFrame(rows).assign(attention="x", split="test", metric="accuracy", unit="")
    return frame.astype({"seed": "Int64"})


def test_five_data_sets_of_fourteen_mechanisms_leave_a_caption_its_room_on_a_page():
    figure = embedded_differences_figure(arena([f"data-{number}" for number in range(5)]))
    assert figure.layout.height / figure.layout.width < 1.1  # of a page of 7.2 by 10 inches, less the caption
    assert len({axis.domain for axis in figure.select_xaxes()}) == 4


def test_what_an_ablation_of_one_seed_changes_stands_beside_the_range_of_the_others():
    frame = record()
    one = frame[frame["seed"].eq(1) & (frame["variant"] == "primal")].assign(variant="primal-e")
    both = frame[frame["variant"] == "softmax"].assign(variant="softmax-boost")
    one["value"] += 0.02 * one["epoch"]
    both["value"] -= 0.1
    (sentence,) = ablation_findings(pd.concat([frame, one, both]), "accuracy")
    assert "On made, test accuracy less that without the change, in points: " in sentence
    assert "primal-e +4.0 (seed 1 alone, not tested; the 3 seeds of primal span 10.0)" in sentence
    assert "softmax-boost −10.0 [−10.0, −10.0] (3 seeds)" in sentence
    assert ablation_findings(frame, "accuracy") == []
    loss = record("loss").assign(unit="nats")
    more = loss[loss["variant"] == "softmax-shuffled"].assign(variant="softmax-boost")
    (sentence,) = ablation_findings(pd.concat([loss, more]), "loss")
    assert "test loss less that without the change, in nats: softmax-boost −0.100 (seed 0 alone" in sentence
