"""Trained variants under attack, corruptions, images of another kind and swapped words."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.intervals import Finding, aupr_interval, mean_interval, newcombe_interval, paired_interval
from workbench.figures.forest import Forest, Interval
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Published, Rule
from workbench.figures.variants import in_order, look_of
from workbench.figures.words import PAPERS, attention_of, noise_words

# Protocol of an attack: what it is called, in the order of panels.
ATTACKS = {
    "fgsm": "FGSM", "pgd": "PGD", "autoattack": "AutoAttack", "square": "Square", "spsa": "SPSA",
    "cw": "Carlini–Wagner", "sld": "SLD", "noise": "Noise",
}  # fmt: skip
_NORMS = {"Linf": "Budget ε (L∞)", "L2": "Budget ε (L2)", "L1": "Budget ε (L1)"}
_LAST = "corruptions"
# What a caption adds where a panel shows more than budgets of every pixel.
_OTHERS = {
    "autoattack": "AutoAttack combines attacks; Square and SPSA (simultaneous perturbation stochastic approximation) "
    "see no gradients.",
    "cw": "Carlini–Wagner seeks the least change in the Euclidean norm (L2), which counts up to ε; for some images it "
    "finds no misclassified one at any distance, and the curve levels off at their share.",
}


def robustness_figure(
    frame: pd.DataFrame, chance: float | None = None, baseline: str | None = None
) -> go.Figure:
    """Top-1 accuracy against the budget, a panel per attack, a line per model with its 95 % interval over images.

    The last panel is accuracy against the severity of corruptions, averaged over their types with the interval over
    these (0: clean images). Attacks that the frame does not hold have no panel, and a model that did not undergo one
    has no line in it.

    Args:
        frame: rows of an evaluation with the column attention, as `workbench.studies.records.recorded` gives them.
        chance: accuracy of guessing, a line.
        baseline: the attention whose accuracy is taken off that of the others, in percentage points, with Newcombe's
            interval (of corruptions a paired one over their types). For variants whose curves lie on each other.

    Raises:
        InputError: no accuracies under an attack or corruption.
        UnknownName: an attention variant without a look.
    """
    rows = rows_of(frame, "accuracy_top1", needs=("attention", "protocol"))
    panels = [name for name in ATTACKS if (rows["protocol"] == name).any()]
    panels += [_LAST] * bool(rows["severity"].notna().any())
    if not panels:
        raise InputError(f"the frame holds no attack and no corruption; choose from {', '.join(ATTACKS)}")
    order = [name for name in in_order(rows["attention"].dropna().unique()) if name != baseline]
    base = rows[rows["attention"] == baseline]
    parts = []
    for protocol, (number, name) in itertools.product(panels, enumerate(order)):
        curve = _curve(rows[rows["attention"] == name], protocol, base if baseline else None)
        share = (number - (len(order) - 1) / 2) * 0.05 / len(order)
        aside = share * (curve["x"].max() - curve["x"].min())
        parts.append(curve.assign(x=curve["x"] + aside, attention=name, protocol=protocol))
    curves = pd.concat(parts)
    kinds = rows[rows["protocol"].isin(panels)].groupby("protocol")["kind"].first()
    words = {name: _NORMS.get(kind, "Budget ε") for name, kind in kinds.items()} | {_LAST: "Severity"}
    names = {name: ATTACKS.get(name, "Corruptions") for name in panels}
    types = f"corruptions: over {rows.loc[rows['severity'].notna(), 'kind'].nunique()} types"
    bars = f"95 % CI over {images_of(rows, types * (_LAST in panels))}"
    plot = Plot(curves.assign(metric="accuracy_top1"), "x", "attention", "protocol", names=names)
    title = {"y_title": "Difference in<br>accuracy (pp)"} if baseline else {}
    plot = plot.metric("accuracy_top1").scale(x_free=True, x_title=words, **title)
    plot = plot.add(Band(columns=("low", "high"), words=bars, bars=True), Line(words="one training seed"))
    if baseline:
        plot = plot.add(Rule(0, f"no difference from {look_of(baseline).label}"))
    elif chance is not None:
        plot = plot.add(Rule(chance, "chance"))
    return plot.figure("page")


def attack_words(frame: pd.DataFrame, baseline: str | None = None) -> str:
    """What a caption says of every `robustness_figure`: what the attacks do, and over what intervals are.

    Args:
        frame: the rows that it draws.
        baseline: the one that is taken off; its intervals are of differences, and the caption says which.
    """
    types = frame.loc[frame["severity"].notna(), "kind"].nunique()
    sentences = [
        "Markers of one budget are set side by side.",
        "FGSM and PGD change each pixel (from 0 to 1) by at most ε along the gradient, noise does so at random.",
        f"Corruptions: mean over {types} types at each of the severities 1 to 5 (0: clean)." * bool(types),
        "Intervals: Wilson's over images, Student's t over types." * (baseline is None),
        *(words for protocol, words in _OTHERS.items() if (frame["protocol"] == protocol).any()),
    ]
    return " ".join(filter(None, sentences))


def robustness_models_figure(
    frame: pd.DataFrame, training: pd.DataFrame, budgets: Mapping[str, float]
) -> go.Figure:
    """A row per model: clean test accuracy, mean over training seeds, and accuracy under attacks of one budget each.

    The last panel is accuracy under corruptions, mean over types and severities. Bars are 95 % intervals: of clean
    accuracy over seeds, of corruptions over types, else over images. All panels but the first have the same axis.
    What the frame says nothing about has no panel; a model's row is empty where it did not undergo the attack.

    Args:
        frame: rows of an evaluation with the column attention, as `workbench.studies.records.recorded` gives them.
        training: the training record of the models, all of which get a row.
        budgets: protocol → budget ε, a panel each.

    Raises:
        InputError: no test accuracy in `training`.
        UnknownName: an attention variant without a look.
    """
    clean = rows_of(training, "accuracy", needs=("attention", "epoch"))
    clean = clean[(clean["split"] == "test") & (clean["epoch"] == clean["epoch"].max())]
    if clean.empty:
        raise InputError("the training record holds no test accuracy; give that of models trained on digits")
    names = in_order(clean["attention"].unique())
    # Two words for one thing: `accuracy` of training is `accuracy_top1` of an evaluation.
    seeds = clean.groupby("attention")["value"]
    found = [{"attention": name, **mean_interval(own).within(0, 1)._asdict()} for name, own in seeds]
    clean_title = f"Clean, mean of<br>{seeds.size().max()} seeds (enlarged)"
    parts = {clean_title: pd.DataFrame(found)}
    for protocol, budget in budgets.items():
        chosen = (frame["metric"] == "accuracy_top1") & (frame["protocol"] == protocol)
        parts[f"{ATTACKS[protocol]},<br>ε = {budget:g}"] = frame[chosen & (frame["epsilon"] == budget)]
    types = frame[(frame["metric"] == "corruption_error") & frame["kind"].notna()]
    right = (1 - types["value"].astype(float)).groupby(types["attention"], sort=False)
    found = [{"attention": name, **mean_interval(own)._asdict()} for name, own in right]
    parts["Corruptions,<br>mean of types"] = pd.DataFrame(found)
    shown = [own.assign(panel=title, metric="accuracy_top1") for title, own in parts.items()]
    rows = pd.concat([own[own["attention"].isin(names)] for own in shown if len(own)])
    titles = {title: title for title in parts if (rows["panel"] == title).any()}
    others = f"clean: over {seeds.size().max()} seeds; corruptions: over {types['kind'].nunique()} types"
    words = f"top-1 accuracy, one training seed, 95 % CI over {images_of(rows, others)}"
    ends = np.floor(10 * np.nanmin(rows[["value", "low"]].to_numpy(dtype=float)) - 0.2) / 10, 1.02
    attacked = {title: ends for title in titles if title != clean_title}
    forest = Forest(rows, y="attention", x=titles, panel="panel").scale(range=attacked)
    return forest.add(Interval(columns=("value", "low", "high"), words=words)).figure()


def images_of(rows: pd.DataFrame, more: str = "") -> str:
    """Over how many images the accuracies of an evaluation are, attacks on fewer named: "445 images (PGD: 100)".

    ``more`` stands in the same brackets.
    """
    if not {"n", "protocol"} <= set(rows) or rows["n"].isna().all():
        return "images" + f" ({more})" * bool(more)
    counts = rows.dropna(subset="n").groupby("protocol", sort=False)["n"].max().astype(int)
    fewer: dict[int, list[str]] = {}
    for name in ATTACKS:
        if counts.get(name, counts.max()) < counts.max():
            fewer.setdefault(counts[name], []).append(ATTACKS[name])
    said = [f"{', '.join(fewer[count])}: {count}" for count in sorted(fewer, reverse=True)] + [more] * bool(
        more
    )
    return f"{counts.max()} images" + f" ({'; '.join(said)})" * bool(said)


def _curve(rows: pd.DataFrame, protocol: str, base: pd.DataFrame | None) -> pd.DataFrame:
    """x, value, low and high of one model under one protocol; of corruptions mean and interval over their types."""
    if base is not None:
        return _less(rows, base, protocol)
    if protocol == _LAST:
        clean = rows.loc[rows["protocol"] == "clean", ["value", "low", "high"]].assign(x=0)
        levels = rows[rows["severity"].notna()].groupby("severity")["value"]
        found = [{"x": level, **mean_interval(own).within(0, 1)._asdict()} for level, own in levels]
        return pd.concat([clean, pd.DataFrame(found)])[["x", "value", "low", "high"]].astype(float)
    own = rows[rows["protocol"] == protocol].rename(columns={"epsilon": "x"}).sort_values("x")
    return own[["x", "value", "low", "high"]].astype(float)


def _less(rows: pd.DataFrame, base: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """The same less the baseline's, in percentage points."""
    names = ["x", "value", "low", "high"]
    both = _curve(rows, protocol, None).merge(_curve(base, protocol, None), on="x", suffixes=("", "_base"))
    found = []
    for row in both.to_dict("records"):
        own, other = (Finding(*(row[f"{name}{end}"] for name in names[1:]), 0) for end in ("", "_base"))
        less = newcombe_interval(own, other)
        if protocol == _LAST and row["x"]:
            pair = (part[part["severity"] == row["x"]].set_index("kind")["value"] for part in (rows, base))
            less = paired_interval(*pair)
        found.append([row["x"], *(100 * end for end in less[:3])])
    return pd.DataFrame(found, columns=names)


ALL = "all types"
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
    """Error under each corruption relative to the baseline's, a panel per group of variants; lower is better.

    Bars are 95 % intervals, over images. Below stands the geometric mean of all types, its interval over these.

    Args:
        ratios: the result of `workbench.studies.baselines.ratios_to_baseline` for corruption_error, with the column
            attention.
        groups: title → attention variants of a panel; those that have no rows are left out.
        published: errors as `workbench.papers.published.published_pairs` gives them: columns model, condition (a
            corruption, or null for all types) and ratio.

    Raises:
        InputError: no ratios of these variants.
    """
    rows = ratios[ratios["ratio"].notna()].assign(kind=ratios["kind"].fillna(ALL))
    held = {*rows["attention"]}
    panels = {
        title: own for title, names in groups.items() if (own := [n for n in in_order(names) if n in held])
    }
    if not panels:
        raise InputError(
            "no errors relative to a baseline; give the result of `ratios_to_baseline` for corruption_error"
        )
    kinds = [kind for kind in dict.fromkeys(rows["kind"]) if kind != ALL] + [ALL]
    types, means = "Type of corruption", f"All {len(kinds) - 1} types"

    def by_panel(frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of each panel's variants, those of types before those of all."""
        parts = [frame[frame["attention"].isin(names)].assign(panel=title) for title, names in panels.items()]
        return pd.concat(parts).assign(part=lambda own: own["kind"].eq(ALL).map({True: means, False: types}))

    shown = by_panel(rows)
    shown = shown.sort_values("kind", key=lambda column: column.map(kinds.index), kind="stable")
    titles = {title: f"{title}<br>(← better)" for title in panels}
    names = {name: look_of(name).label for names in panels.values() for name in names}
    names |= {kind: noise_words(kind).replace("jpeg", "JPEG") for kind in kinds} | {ALL: "geometric mean"}
    forest = Forest(shown, y="kind", x=titles, group="part", panel="panel", color="attention", names=names)
    ends = {title: own[["ratio", "low", "high"]].astype(float) for title, own in shown.groupby("panel")}
    ends = {title: (0.93 * own.min().min(), 1.07 * own.max().max()) for title, own in ends.items()}
    forest = forest.scale(log=True, row=1.9, range=ends)
    said = f"ratio of errors, one training seed, 95 % CI over {images_of(rows)} (geometric mean: over types)"
    forest = forest.add(Interval(columns=("ratio", "low", "high"), words=said), Rule(1, "baseline"))
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


def ood_figure(frame: pd.DataFrame) -> go.Figure:
    """AUPR of out-of-distribution images by the largest probability, a row per model; guessing gives 1/2.

    Bars are those of `with_aupr_ends`, over as many out-of-distribution images as the model's own.

    Args:
        frame: rows of an evaluation with the column attention, as `workbench.studies.records.recorded` gives them.

    Raises:
        InputError: no AUPR in the frame.
    """
    rows = rows_of(frame, "aupr", needs=("attention", "kind"))
    known = with_aupr_ends(rows[rows["kind"].isin([*_FOREIGN])])
    titles, drawn = {"aupr": "AUPR of out-of-distribution images<br>(→ better)"}, known.assign(panel="aupr")
    forest = Forest(drawn, y="attention", x=titles, panel="panel", color="kind", names=_FOREIGN)
    words = Interval(columns=("value", "low", "high"), words=f"95 % CI over {images_of(known)} of each kind")
    return forest.scale(row=2.1).add(words, Rule(0.5, "chance")).figure("column")


def with_aupr_ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of AUPR with the ends of their 95 % intervals, on logits (Boyd et al. 2013), in ``low`` and ``high``."""
    ends = [aupr_interval(value, n) for value, n in zip(rows["value"], rows["n"], strict=True)]
    return rows.assign(low=[one.low for one in ends], high=[one.high for one in ends])


_PANELS = {"perplexity": "All characters", "perplexity_kept": "Characters that no swap touches"}
_RATIO = "Ratio to softmax (↓ better)"


def perplexity_figure(frame: pd.DataFrame, ratios: pd.DataFrame) -> go.Figure:
    """Perplexity against the share of swapped words: of everything, and of what no swapped word touches.

    Below, the same divided by the baseline's. Bands are 95 % intervals over texts.

    Args:
        frame: rows of word-swap with the column attention, as `workbench.studies.records.recorded` gives them.
        ratios: the results of `workbench.studies.baselines.ratios_to_baseline` for both perplexities, joined.

    Raises:
        InputError: no perplexity.
        UnknownName: an attention variant without a look.
    """
    parts = [frame.assign(quantity="perplexity"), ratios.assign(value=ratios["ratio"], quantity=_RATIO)]
    rows = pd.concat([_drawn(part) for part in parts])
    if rows.empty:
        raise InputError("the frame holds no perplexity; give rows of the protocol word-swap")
    in_order(rows["attention"].unique())
    rows["baseline"] = rows["metric"].map({_RATIO: 1.0})
    shown = [name for name in ("perplexity", _RATIO) if (rows["metric"] == name).any()]
    plot = Plot(rows, x="swapped", color="attention", panel="of").metric(*shown)
    plot = plot.scale(x_title="Words swapped (%)", y_log=True).add(
        Band(columns=("low", "high"), words="95 % CI over texts", alpha=0.13), Line(words="one training seed"),
        Rule(column="baseline", name="softmax baseline"),
    )  # fmt: skip
    return plot.figure("page")


def _drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of both perplexities against the share in per cent, with a panel each."""
    own = rows[rows["metric"].isin(_PANELS) & rows["value"].notna()]
    plain = own.drop(columns=["protocol", "epsilon"], errors="ignore")
    return plain.assign(swapped=100 * own["epsilon"], of=own["metric"].map(_PANELS), metric=own["quantity"])
