"""Trained variants under attack, corruptions, images of another kind and swapped words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Interval, Line, Mark, Published, Rule, Ticks
from workbench.figures.variants import in_order, look_of
from workbench.figures.words import PAPERS, attention_of, noise_words

# Protocol of an attack: what it is called, in the order of panels.
ATTACKS = {
    "fgsm": "FGSM", "pgd": "PGD", "autoattack": "AutoAttack", "square": "Square", "spsa": "SPSA",
    "cw": "Carlini–Wagner", "sld": "SLD", "noise": "Noise",
}  # fmt: skip
_OF_PAIRS = {"pgd-random": "PGD, random starts", "transfer": "PGD on another model"}
"""Attacks that were asked of one pair of models: is its robustness masked gradients?"""
_NORMS = {**dict.fromkeys(ATTACKS, "Budget ε (L∞)"), "cw": "Budget ε (L2)", "sld": "Budget ε (L1)"}
_LAST = "corruptions"
# What a caption adds where a panel shows more than budgets of every pixel.
_OTHERS = {
    "autoattack": "AutoAttack combines attacks; Square and SPSA (simultaneous perturbation stochastic approximation) "
    "see no gradients.",
    "cw": "Carlini–Wagner seeks the least change in the Euclidean norm (L2), which counts up to ε; for some images it "
    "finds no misclassified one at any distance, and the curve levels off at their share.",
}


_SEEDS = {True: "single seed", False: "exploratory seed, not in the mean"}
"""Ticks of single seeds, by whether the mean includes them."""


def _means_and_lines(rows: pd.DataFrame) -> pd.DataFrame:
    """The means of several seeds, and the single exploratory ones; ``mean`` says which."""
    several = rows["training_seed"].isna() & (rows["seeds"] > 1)
    single = rows["training_seed"].notna() & (rows["seed_kind"] == "exploratory")
    return pd.concat([rows[several].assign(mean=True), rows[single].assign(mean=False)])


def _lines_and_means(rows: pd.DataFrame, over: str = "seeds and images") -> list[Mark]:
    """The marks of curves of one seed with the means of several beside them, and what the key says of each."""
    lines = Line(words="1 seed, no interval", where=("mean", False), pale=True)
    counts = _seed_counts(rows)
    if not counts:
        return [lines]
    bars = Band(columns=("low", "high"), words=f"95 % CI over {over}", bars=True)
    return [bars, lines, Line(words=f"mean over {counts} seeds", where=("mean", True), joined=False)]


def _seed_counts(rows: pd.DataFrame) -> str:
    """Of how many seeds the means are, "5" or "3 to 5"; nothing where no mean is of several."""
    counts = rows.loc[rows["training_seed"].isna() & (rows["seeds"] > 1), "seeds"]
    if counts.empty:
        return ""
    low, high = int(counts.min()), int(counts.max())
    return f"{low}" if low == high else f"{low} to {high}"


def _seeds_drawn(rows: pd.DataFrame) -> tuple[pd.DataFrame, Interval, Ticks]:
    """The means, how they are drawn, and ticks of their seeds (none of a mean of one)."""
    rows = rows.reset_index(drop=True)
    means = rows[rows["training_seed"].isna()]
    keys = [name for name in ("panel", "attention", "model", *_CONDITION) if name in rows]
    several = means.loc[means["seeds"] > 1, keys].astype("string").fillna("")
    single = rows[rows["training_seed"].notna()]
    several = several.assign(mean_kind=means["seed_kind"]).drop_duplicates(keys)
    single = single.astype(dict.fromkeys(keys, "string")).fillna(dict.fromkeys(keys, ""))
    ticks = rows.loc[single.index].assign(
        mean_kind=single.merge(several, "left", keys)["mean_kind"].to_numpy()
    )
    ticks = ticks[ticks["mean_kind"].notna()]
    ticks = ticks.assign(in_mean=ticks["seed_kind"] == ticks["mean_kind"])
    counts = _seed_counts(rows)
    single = "1 seed, no interval"
    alone = single * bool((means["seeds"] == 1).any() and counts)
    words = f"mean over {counts} seeds, 95 % CI" if counts else single
    interval = Interval(columns=("value", "low", "high"), words=words, alone=alone)
    return means, interval, Ticks(ticks, "in_mean", _SEEDS)


def attack_words(frame: pd.DataFrame) -> str:
    """Return the sentences of a caption about the attacks and corruptions that a frame of accuracies holds."""
    held = {*frame["protocol"]}
    sentences = [
        "FGSM and PGD change each pixel (of 1) by at most ε along the gradient, noise does so at random."
        * bool(held & {"fgsm", "pgd", "noise"}),
        *(words for protocol, words in _OTHERS.items() if protocol in held),
    ]
    return " ".join(filter(None, sentences))


def condition_words(protocol: str, budget: float) -> str:
    """Return what a row or panel is called: "PGD, ε = 0.02", "Corruptions (mean of kinds)"."""
    if protocol == "clean":
        return "Clean"
    name = (ATTACKS | _OF_PAIRS).get(protocol)
    return f"{name}, ε = {budget:g}" if name else "Corruptions, mean of kinds"


def robustness_models_figure(means: pd.DataFrame) -> go.Figure:
    """Draw a row per model and a panel per condition: accuracy, mean over seeds, with a tick for every seed.

    Bars are 95 % intervals over seeds, crossed with images where the record holds which were classified correctly. A
    model with one seed has a pale marker and no interval. All panels but that of clean images share an axis.

    Args:
        means: `seed_means` of the `conditions` of `workbench.studies.over_seeds`, over kinds.

    Raises:
        InputError: no accuracies.
        UnknownName: an attention variant without a look.
    """
    rows = rows_of(means, "accuracy_top1", needs=("attention", "protocol", "seeds"))
    order = [name for name in ("clean", *ATTACKS, _LAST) if (rows["protocol"] == name).any()]
    rows = rows[rows["protocol"].isin(order)]
    in_order(rows["attention"].unique())
    labels = [
        condition_words(*one).replace(", ", ",<br>")
        for one in zip(rows["protocol"], rows["epsilon"], strict=True)
    ]
    rows = rows.assign(panel=labels)
    first = rows.drop_duplicates("protocol").set_index("protocol")["panel"]
    titles = {first[name]: first[name] + " (enlarged)" * (name == "clean") for name in order}
    drawn, interval, ticks = _seeds_drawn(rows)
    least = np.nanmin(
        rows.loc[rows["protocol"] != "clean", ["value", "low"]].to_numpy(dtype=float), initial=1
    )
    ends = max(0.0, np.floor(10 * least - 0.2) / 10), 1.02
    shared = {title: ends for title in titles if title != first.get("clean")}
    forest = Plot(drawn, y="attention", x=titles, panel="panel").scale(x_range=shared)
    return forest.add(interval, ticks).figure()


def robustness_differences_figure(means: pd.DataFrame, differences: pd.DataFrame) -> go.Figure:
    """Draw a row per attack: accuracies of mechanisms and their baseline, and differences with the verdicts' intervals.

    Rows with several seeds come first, those with one below a heading that says so. A tick is a seed; in the right
    panel a seed of the mechanism less the same seed of the baseline.

    Args:
        means: `seed_means` of the `conditions` of `workbench.studies.over_seeds`, over kinds.
        differences: `seed_differences` of the same.

    Raises:
        InputError: no differences.
        UnknownName: an attention variant without a look.
    """
    less = rows_of(differences, "accuracy_top1", needs=("attention", "baseline", "protocol", "seeds"))
    less = less.assign(**{name: 100 * less[name] for name in ("value", "low", "high")}, panel=_LESS)
    kept = means[means["protocol"].isin(less["protocol"])]
    rows = pd.concat([kept.assign(panel=_ACCURACY), less])
    order = [name for name in ("clean", *ATTACKS, *_OF_PAIRS, _LAST) if (rows["protocol"] == name).any()]
    rows = rows.sort_values("protocol", key=lambda names: names.map(order.index), kind="stable")
    seeds = less[less["training_seed"].isna()].groupby("protocol")["seeds"].max()
    rows["label"] = [condition_words(*one) for one in zip(rows["protocol"], rows["epsilon"], strict=True)]
    single = rows["protocol"].map(seeds) == 1
    rows["seeds compared"] = single.map({True: "1 seed a side", False: f"{seeds.max()} seeds a side"})
    rows = pd.concat([rows[~single], rows[single]])
    baseline = means.loc[means["model"].isin(less["baseline"]), "attention"].iloc[0]
    names = {name: look_of(name).label for name in in_order(rows["attention"].unique())}
    drawn, interval, ticks = _seeds_drawn(rows)
    titles = {
        _ACCURACY: "Top-1 accuracy<br>(→ better)",
        _LESS: f"Difference from {look_of(baseline).label}<br>(pp, → better)",
    }
    forest = Plot(drawn, titles, "attention", "panel", names=names, y="label", group="seeds compared")
    forest = forest.scale(row=0.75 * rows["attention"].nunique() + 0.7)
    return forest.add(interval, ticks, Rule({_LESS: 0.0}, "no difference")).figure()


_ACCURACY, _LESS = "accuracy", "difference"
_CONDITION = ("protocol", "kind", "epsilon", "severity", "metric")

ALL = "all kinds"
FAMILIES = {
    "RPC over symmetric softmax": ("rpc-sym",),
    "Bilateral, boost over softmax": ("bilateral", "softmax+boost", "bilateral+boost"),
    "Others over softmax": ("scaled-free", "scaled-alpha", "tssa", "primal"),
}
"""Panels of `corruptions_figure`, each of variants with one baseline."""
_FOREIGN = {"inverted": "inverted digits", "photographs": "cuts of photographs", "noise": "uniform noise"}


def corruptions_figure(
    ratios: pd.DataFrame,
    groups: Mapping[str, Sequence[str]] = FAMILIES,
    published: pd.DataFrame | None = None,
) -> go.Figure:
    """Draw the error under each corruption relative to the baseline's, a panel per group of variants; lower is better.

    The title of a panel says how many seeds a side are compared. Bars are 95 % intervals over seeds, of which a panel
    with one seed has none. Below is the ratio of the errors' means over all kinds.

    Args:
        ratios: `workbench.studies.over_seeds.seed_differences` of corruption errors as a ratio, for each kind and
            over all kinds (``kind`` null).
        groups: title → attention variants of a panel; those that have no rows are left out.
        published: errors as `workbench.papers.published.published_pairs` gives them: columns model, condition (a
            corruption, or null for all kinds) and ratio.

    Raises:
        InputError: no ratios of these variants.
    """
    rows = ratios[ratios["value"].gt(0) & ratios["value"].lt(np.inf)].assign(kind=ratios["kind"].fillna(ALL))
    held = {*rows["attention"]}
    panels = {
        title: own for title, names in groups.items() if (own := [n for n in in_order(names) if n in held])
    }
    if not panels:
        raise InputError(
            "no errors relative to a baseline; give the result of `seed_differences` for corruption_error"
        )
    kinds = [kind for kind in dict.fromkeys(rows["kind"]) if kind != ALL] + [ALL]
    types, means = "Kind of corruption", f"All {len(kinds) - 1} kinds"

    def by_panel(frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of each panel's variants, those of single kinds before those of all."""
        parts = [frame[frame["attention"].isin(names)].assign(panel=title) for title, names in panels.items()]
        return pd.concat(parts).assign(part=lambda own: own["kind"].eq(ALL).map({True: means, False: types}))

    shown = by_panel(rows)
    shown = shown.sort_values("kind", key=lambda column: column.map(kinds.index), kind="stable")
    drawn, interval, ticks = _seeds_drawn(shown)
    counts = drawn.groupby("panel")["seeds"].max()
    titles = {
        title: f"{title}<br>({counts[title]} seed{'s'[: counts[title] - 1]} a side, ← better)"
        for title in panels
    }
    names = {name: look_of(name).label for names in panels.values() for name in names}
    names |= {kind: noise_words(kind).replace("jpeg", "JPEG") for kind in kinds} | {ALL: "mean over kinds"}
    forest = Plot(drawn, y="kind", x=titles, group="part", panel="panel", color="attention", names=names)
    ends = {title: own[["value", "low", "high"]].astype(float) for title, own in shown.groupby("panel")}
    ends = {title: (0.93 * own.min().min(), 1.07 * own.max().max()) for title, own in ends.items()}
    forest = forest.scale(x_log=True, row=1.9, x_range=ends).add(interval, ticks, Rule(1, "baseline"))
    if published is not None:
        kind, attention = published["condition"].fillna(ALL), published["model"].map(attention_of)
        found = by_panel(published.assign(value=published["ratio"], kind=kind, attention=attention))
        keys = found["paper"].unique() if "paper" in found else ["papers"]
        many = found.groupby(["panel", "kind"]).size().max()
        said = (
            f" in {', '.join(PAPERS.get(key, key) for key in keys)}, median and range of {many} other models"
        )
        forest = forest.add(Published(found, ranges=True, beside=True, words=said))
    return forest.figure()


def ood_figure(means: pd.DataFrame) -> go.Figure:
    """Draw the AUPR of out-of-distribution images, a row per model and a panel per kind of images; guessing gives 1/2.

    Bars are 95 % intervals over seeds; a model with one seed has a pale marker and none.

    Args:
        means: `workbench.studies.over_seeds.seed_means` of AUPR.

    Raises:
        InputError: no AUPR in the frame.
    """
    rows = rows_of(means, "aupr", needs=("attention", "kind", "seeds"))
    rows = rows[rows["kind"].isin([*_FOREIGN])]
    drawn, interval, ticks = _seeds_drawn(rows.assign(panel=rows["kind"]))
    titles = {
        kind: f"AUPR of {words}<br>(→ better)"
        for kind, words in _FOREIGN.items()
        if (rows["kind"] == kind).any()
    }
    forest = Plot(drawn, y="attention", x=titles, panel="panel").scale(x_same=True)
    return forest.add(interval, ticks, Rule(0.5, "chance")).figure()


_PANELS = {"perplexity": "All characters", "perplexity_kept": "Characters that no swap touches"}
_RATIO = "Ratio to baseline (↓ better)"


def perplexity_figure(means: pd.DataFrame, ratios: pd.DataFrame) -> go.Figure:
    """Draw perplexity against the share of swapped words: of everything, and of what no swapped word touches.

    Below, the same divided by the baseline's. A line is the exploratory seed, without an interval; a large marker is
    the mean over the seeds that answer, with its 95 % interval over seeds.

    Args:
        means: `workbench.studies.over_seeds.seed_means` of both perplexities of word-swap.
        ratios: `seed_differences` of the same as a ratio.

    Raises:
        InputError: no perplexity.
        UnknownName: an attention variant without a look.
    """
    parts = [means.assign(quantity="perplexity"), ratios.assign(quantity=_RATIO)]
    rows = pd.concat([_drawn(part) for part in parts])
    if rows.empty:
        raise InputError("the frame holds no perplexity; give rows of the protocol word-swap")
    in_order(rows["attention"].unique())
    rows["baseline"] = rows["metric"].map({_RATIO: 1.0})
    shown = [name for name in ("perplexity", _RATIO) if (rows["metric"] == name).any()]
    plot = Plot(rows, x="swapped", color="attention", panel="of").metric(*shown)
    plot = plot.scale(x_title="Words swapped (%)", y_log=True).add(
        *_lines_and_means(pd.concat([means, ratios]), "seeds"),
        Rule(column="baseline", name="baseline"),
    )
    return plot.figure("page")


def _drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of both perplexities against the share in per cent, with a panel each."""
    own = _means_and_lines(rows[rows["metric"].isin(_PANELS) & rows["value"].notna()])
    plain = own[["attention", "value", "low", "high", "mean"]]
    return plain.assign(swapped=100 * own["epsilon"], of=own["metric"].map(_PANELS), metric=own["quantity"])
