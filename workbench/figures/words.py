"""The words of a legend for the names of the code: captions say what the figure says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from workbench.figures.variants import LOOKS, MECHANISMS

PAPERS = {
    "teo2024": "Teo et al. (2024)",
    "saritas2025": "Sarıtaş et al. (2025)",
    "wu2025": "Wu et al. (2025)",
    "chen2023": "Chen et al. (2023)",
    "abdullaev2025": "Abdullaev et al. (2025)",
}
"""Papers as a caption cites them."""

NAMES = {
    "as_implemented": "as in the authors' code",
    "as_published": "as published",
    "(ours)": "(from value projections)",
    "resid_pre": "before the block",
    "resid_mid": "after attention",
    "resid_post": "after the block",
    "attn_out": "output of attention",
    "head_out": "output of the head",
    "gaussian null": "Gaussian null",
    "projection_error teo2024_as_implemented": "J as the code of Teo et al. (2024) has it",
}
"""Names of conventions, sites and nulls, to what figures call them. One that is a plain word, too, counts in brackets
alone: sentences have that word."""

DEFINED = {
    r"\\u25b2 ": "Values beyond the ends of the colour bar, up to the numbers at its arrows, have the last colours",
    r"RPC|MSSA|TSSA|Bilateral with|\bFAN\b|\bonly e\b": "Mechanisms: docs/attention.md",
}
"""Patterns in the labels of a figure (as JSON), and what its caption says of them."""

DATA = ("digits", "photos", "prose")
"""Data that models here were trained on."""

COLUMNS = {
    "layer": "Layer", "rank": "Rank", "epoch": "Epoch", "epsilon": "Budget ε", "severity": "Severity",
    "head": "Head", "depth": "Depth (share of layers)", "seed": "Seed", "step": "Step",
}  # fmt: skip
"""Columns of a frame, to the titles of their axes."""

UNITS = {"input": "inputs", "head": "heads", "seed": "seeds", "layer": "layers", "severity": "severities"}
"""Columns over which values are sampled, to their plurals."""

NULLS = {
    "gaussian": "Gaussian", "permutation": "permuted", "isotropic": "random directions",
    "uniform": "uniform attention", "outcomes": "other outcomes",
}  # fmt: skip
"""Kinds of null distribution, to their words."""

STATISTIC = re.compile(r"\b(mean|median|range|quartiles?|IQR)\b|:\s?[-−+]?\d")
"""A summary or its value, which the caption has and no legend: "mean over seeds", "rank of 90 %: 7"."""

NO_DATA = "no data"
"""The default words of a panel without data."""

_ATTENTIONS = {name: look.label for name, look in LOOKS.items() if name != look.label}
_ALL = {**PAPERS, **NAMES, **_ATTENTIONS, **{f"prose-{name}": words for name, words in _ATTENTIONS.items()}}
_NAME = re.compile(
    rf"(?<![\w:/.-])(?:{'|'.join(sorted(map(re.escape, _ALL), key=len, reverse=True))})(?![\w/+]|[-.]\w)"
)
_MODEL = re.compile(r"(?:\bbundled:)?\b((?:digits|photos|prose)-[\w-]+)")
_SPEC = re.compile(r"\b(?:[Bb]undled|hf|timm|hub):(?:[\w.-]+/)*(?=[\w.-])")
_POWER = re.compile(r"\b(\d)(?:\.(\d+))?e([+−-]\d+)\b")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MINUS = re.compile(r"(?<![\w)\]-])-(?=\d)")
_INDEX = re.compile(r"(?<![\w.])(Δ?\w)_([ijknre])\b")
_DATA = re.compile(r'"(?:bdata|source)":"[^"]*"')
_PERCENT = re.compile(r"(?<=\d)%")
_LOWERED = str.maketrans("ijknre", "ᵢⱼₖₙᵣₑ")


def in_words(text: str) -> str:
    """A caption as a figure speaks: models by their short names, attentions, papers and conventions in words.

    Numbers are written out where they are short enough: 3.61e+03 as 3610, −3.05e−07 as −3.05·10⁻⁷; 5% as 5 %, U_k as
    Uₖ.
    """
    text = _MINUS.sub("−", _SPEC.sub("", text))
    text = _INDEX.sub(lambda match: match[1] + match[2].translate(_LOWERED), _NAME.sub(_said, text))
    return _PERCENT.sub(" %", _POWER.sub(_number, text))


def sentences(text: str) -> list[str]:
    """Return the sentences of a caption; no number and no abbreviation before a lower case ends one."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z(])", text)


def split_finding(caption: str) -> tuple[str, str]:
    """Return the finding that begins a caption, between "**", and the rest of it."""
    match = re.match(r"\*\*(.*?)\*\*\s*", caption)
    return (match[1], caption[match.end() :]) if match else ("", caption)


def without_nulls(text: str) -> str:
    """Return a caption without the sentences that begin with "Null", for a figure that draws none."""
    return " ".join(sentence for sentence in sentences(text) if not re.match(r"Nulls?\b", sentence))


def with_marks(caption: str, marks: Sequence[str]) -> str:
    """Return a caption with the sentences about a figure's marks that it lacks, before those about its null."""
    parts = sentences(caption)
    at = next((place for place, words in enumerate(parts) if re.match(r"Nulls?\b", words)), len(parts))
    return " ".join([*parts[:at], *(words for words in marks if words not in caption), *parts[at:]])


def with_definitions(caption: str, labels: str) -> str:
    """A caption that also says what the labels of its figure are short for, where it does not yet."""
    labels = _DATA.sub("", labels).replace(r"\u003c", "<").replace(r"\u003e", ">")  # as plotly writes them
    short = [
        words for sign, words in DEFINED.items() if re.search(sign, labels) and not _explained(words, caption)
    ]
    return " ".join([caption, *(f"{words}." for words in short)]) if caption else caption


def _explained(words: str, caption: str) -> bool:
    """Whether a caption has a definition already, or its name in parentheses after the words it is short for."""
    name = words.partition(":")[0]
    return f"{name}:" in caption or re.search(rf"[a-z] \({re.escape(name)}\)", caption) is not None


def _said(match: re.Match[str]) -> str:
    """The words for a name; a paper inside parentheses has its year behind a comma."""
    before = match.string[: match.start()]
    words = _ALL[match[0]]
    inside = match[0] in PAPERS and before.count("(") > before.count(")")
    return re.sub(r" \((\d+)\)$", r", \1", words) if inside else words


def embedded_model(name: str) -> str:
    """A bundled model of an embedded task in words: embedded-digits-tssa as token statistics (digits), else ""."""
    data, _, variant = name.removeprefix("embedded-").partition("-")
    attention = _variant(variant) if name.startswith("embedded-") else ""
    return f"{attention} ({data})" if attention else ""


def variant_words(text: str) -> str:
    """A text with the models of the records, or one operator, in words: digits-rpc-sym as symmetric RPC."""
    return _variant(text) or _MODEL.sub(lambda match: _variant(match[1]) or match[0], text)


def noise_words(kind: str) -> str:
    """A kind of noise or corruption in words: gaussian-noise as Gaussian noise."""
    return kind.replace("-", " ").replace("gaussian", "Gaussian")


def attention_of(model: str) -> str:
    """The attention of a model of the records as `LOOKS` names it; nothing for any other model."""
    task, _, kind = model.rpartition(":")[2].partition("-")
    kind = {"vit": "softmax", "tost": "tssa", "xcit": "xca"}.get(kind) or kind.replace("-boost", "+boost")
    return kind if task in DATA and kind in LOOKS else ""


def _variant(name: str) -> str:
    task, _, kind = name.partition("-")
    kind = (kind if task in DATA else name).replace("-boost", "+boost")
    kind, _, boost = kind.partition("+")
    label = MECHANISMS.get(kind) or (LOOKS[kind].label if kind in LOOKS else "")
    causal = "causal " * (name == kind and kind.endswith("-causal"))
    return causal + label + " + boost" * bool(boost) if label else ""


def _number(match: re.Match[str]) -> str:
    digits, power = match[1] + (match[2] or ""), int(match[3].replace("−", "-"))
    if 0 <= power < 6:
        integer = digits.ljust(power + 1, "0")
        return integer[: power + 1] + (f".{integer[power + 1 :]}" if integer[power + 1 :] else "")
    mantissa = match[1] + (f".{match[2]}" if match[2] else "")
    return f"{mantissa}·10{str(power).translate(_RAISED)}"
