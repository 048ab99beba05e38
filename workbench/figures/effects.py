"""What a mechanism changes: measured on bundled models, and as the papers print it, claim by claim."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.claims import VERDICTS
from workbench.figures.forest import Forest, Interval, Verdict
from workbench.figures.marks import Published, Rule
from workbench.figures.robustness import ATTACKS
from workbench.papers.verdicts import parse_measure

COLUMNS = ("group", "label", "source", "paper", "table", "row", "value", "low", "high", "n", "verdict", "why")
Over = Literal["difference", "ratio"]
_OVER = {"difference": "model - baseline", "ratio": "model / baseline"}
_ALONE = "(published only)"
_WORDS = {
    "accuracy": "clean images, three seeds",
    "corruption_error": "corruptions, mean of types",
    "aupr": "out-of-distribution images, AUPR",
    "perplexity": "clean text, three seeds",
    "loss": "clean text, loss, three seeds",
}
_KINDS = ("clean", *ATTACKS, "word-swap", "corruptions", "ood")  # in the order of a group's lines


def effects_frame(claims: pd.DataFrame, pairs: pd.DataFrame, over: Over) -> pd.DataFrame:
    """Measured and published effects of mechanisms under the same words, one per row.

    ``group`` names the two models, ``label`` under what they were compared, ``source`` is "here" or "published",
    ``paper``, ``table`` and ``row`` where the published one stands. A difference is positive where the mechanism is
    the better one, in percentage points; a ratio is the mechanism's value over its baseline's. Only claims about
    accuracies, AUPR, perplexity and loss have rows.

    Args:
        claims: the result of `workbench.studies.claims_from_records`.
        pairs: the result of `workbench.papers.published.published_pairs`; pairs without a bundled counterpart are
            groups of their own.
        over: which kind of effect.
    """
    rows = [*_measured(claims[claims["over"] == _OVER[over]], over), *_published(pairs, over)]
    frame = pd.DataFrame(rows, columns=["kind", "models", *COLUMNS])
    # A published pair takes the words of the claim about the same models and condition. What is published of these
    # models beyond the claims is not shown.
    same = ["models", "kind"]
    words = frame[frame["source"] == "here"].drop_duplicates(same).set_index(same)[["group", "label"]]
    ours = frame["models"].isin(words.index.get_level_values("models"))
    for index, row in frame[ours].iterrows():
        if (row["models"], row["kind"]) in words.index:
            frame.loc[index, ["group", "label"]] = words.loc[(row["models"], row["kind"])]
    frame = frame[~(ours & frame["group"].str.endswith(_ALONE))]
    order = [
        frame["group"].map({name: place for place, name in enumerate(frame["group"].unique())}),
        frame["kind"].map(_KINDS.index),
    ]
    frame = frame.iloc[np.lexsort(order[::-1])][list(COLUMNS)]
    frame.attrs = dict(claims.attrs)
    return frame.reset_index(drop=True)


def effects_figure(frame: pd.DataFrame, over: Over) -> go.Figure:
    """A line per comparison, grouped by the two models: the effect measured here, the published ones, the verdict.

    The measured value has its 95 % interval; every published configuration is a diamond. Right of the upright line
    (zero, or a ratio of one) the mechanism has the higher value.

    Args:
        frame: the result of `effects_frame`.
        over: what its values are; ratios have a logarithmic axis.

    Raises:
        InputError: no rows.
    """
    if frame.empty:
        raise InputError("no comparison to draw; give the result of `effects_frame`")
    keys = ["group", "label"]
    ours, printed = (frame[frame["source"] == source] for source in ("here", "published"))
    alone = printed[~pd.MultiIndex.from_frame(printed[keys]).isin(pd.MultiIndex.from_frame(ours[keys]))]
    rows = frame.assign(value=frame["value"].where(frame["source"] == "here"))
    rows = (
        rows[(rows["source"] == "here") | rows.index.isin(alone.index)]
        .drop_duplicates(keys)
        .assign(source="here")
    )
    rows["verdict"] = rows["verdict"].str.removesuffix(" at this scale")
    colours = {name.removesuffix(" at this scale"): colour for name, (colour, _) in VERDICTS.items()}
    title = "Gain over baseline (pp)" if over == "difference" else "Ratio to baseline (↓ better)"
    forest = Forest(rows, y="label", group="group", x={"here": title}, panel="source").scale(
        log=over == "ratio"
    )
    return forest.add(
        Interval(columns=("value", "low", "high"), words="measured here, 95 % CI"),
        Published(printed.assign(source="here"), words=", each configuration"),
        Rule(0 if over == "difference" else 1, "baseline"),
        Verdict(colours=colours),
    ).figure()


def _measured(claims: pd.DataFrame, over: Over) -> Iterator[dict]:
    for claim in claims.to_dict("records"):
        (term,) = parse_measure(claim["measure"])
        protocol = term.where.get("protocol")
        if term.metric not in _WORDS and protocol not in ATTACKS:
            continue
        models = dict(pair.split("=") for pair in claim["options"].split(", "))
        label = _WORDS.get(term.metric, "")
        if protocol in ATTACKS:
            label = f"{ATTACKS[protocol]}, ε = {term.where['epsilon']}"
        elif protocol == "word-swap":
            label = f"{float(term.where['epsilon']):.0%} of words swapped".replace("%", " %")
        scale = 1.0
        if over == "difference":  # of an error less is better: the claim says so
            scale = -100 if claim["comparison"].startswith("<") else 100
        ends = sorted(scale * claim[name] for name in ("low", "high"))
        yield {
            "kind": protocol or "clean",
            "models": models["model"],
            "group": f"{models['model']} {'less' if over == 'difference' else 'over'} {models['baseline']}",
            "label": label,
            "source": "here",
            "value": scale * claim["measured"],
            "low": ends[0],
            "high": ends[1],
            **{name: claim[name] for name in ("n", "verdict", "why")},
        }


def _published(pairs: pd.DataFrame, over: Over) -> Iterator[dict]:
    for pair in pairs.astype(object).where(pairs.notna(), None).to_dict("records"):
        kind, label = _kind(pair)
        if kind is None or (over == "ratio") == (pair["metric"] in ("accuracy_top1", "aupr")):
            continue
        word = "less" if over == "difference" else "over"
        yield {
            "kind": kind,
            "models": pair["model"],
            "group": f"{pair['row']} {word} {pair['baseline']} {_ALONE}",
            "label": label,
            "source": "published",
            **{name: pair[name] for name in ("paper", "table", "row")},
            "value": 100 * pair["difference"] if over == "difference" else pair["ratio"],
            "low": math.nan,
            "high": math.nan,
        }


def _kind(pair: dict) -> tuple[str | None, str | None]:
    """What a published number is about, as the protocols call it, and in words; None for what is not compared."""
    metric, data, condition = pair["metric"], pair["data"] or "", pair["condition"]
    if metric == "aupr":
        return "ood", _WORDS["aupr"]
    if metric == "accuracy_top1" and condition in ATTACKS:
        return condition, ATTACKS[condition]
    if metric == "accuracy_top1" and condition is None:
        if data == "ImageNet-C" and pair["statistic"] == "mean":
            return "corruptions", _WORDS["corruption_error"]
        return ("clean", "clean images") if data == "ImageNet-1K" else (None, None)
    if metric == "perplexity" and data.endswith("test"):
        return condition or "clean", "some words swapped" if condition else "clean text"
    if metric == "cross_entropy" and pair["statistic"] == "mean":
        return "clean", "clean text, loss"
    return None, None
