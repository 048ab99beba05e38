"""Read the .ts text format of the UEA archive of time series, as its authors document it.

The authors' readers depend on large toolkits. The format is a header, then one line per case.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from workbench.core.errors import InputError
from workbench.studies.training.tasks.user_files import numbered_lines

MISSING = "?"


@dataclass(frozen=True)
class SeriesFile:
    """The cases of a file. ``classes`` are those of the header, otherwise those of the cases."""

    classes: tuple[str, ...]
    series: list[Float[np.ndarray, "step channel"]]
    """A missing value is nan; cases may differ in length."""
    labels: list[str]

    @property
    def channels(self) -> int:
        return self.series[0].shape[1]


def read_ts(path: Path) -> SeriesFile:
    """Read a .ts file of classified series, all with the same channels.

    Raises InputError, with the line, for an invalid file: text that is neither comment, header nor data, time stamps,
    missing classes, values that are not numbers, channels that differ in number or length.
    """
    header: dict[str, list[str]] = {}
    series: list[np.ndarray] = []
    labels: list[str] = []
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        if "data" in header:
            *channels, label = line.split(":")
            series.append(_case(where, channels, header, series))
            labels.append(_label(where, label.strip(), header))
        elif line.startswith("@"):
            name, *values = line[1:].split() or [""]
            header[name.lower()] = values
            if name.lower() == "data":
                _check_header(path, header)
        elif not line.startswith(("#", "%")):
            raise InputError(
                f"{where}: {line[:40]!r} is neither a comment (#), a header (@name value) nor data after @data; "
                "give a .ts file of the UEA archive"
            )
    if not series:
        what = "no cases after @data" if "data" in header else "no @data" if header else "nothing in it"
        raise InputError(f"{path} has {what}; it may be cut short: copy it again")
    return SeriesFile(tuple(header["classlabel"][1:]) or tuple(sorted(set(labels))), series, labels)


def _check_header(path: Path, header: dict[str, list[str]]) -> None:
    if [value.lower() for value in header.get("timestamps", [])] == ["true"]:
        raise InputError(f"{path} has time stamps (@timeStamps true); only values at even steps are read")
    if [value.lower() for value in header.get("classlabel", [])[:1]] != ["true"]:
        raise InputError(
            f"{path} names no classes (@classLabel true a b …); only series that are to be classified are read"
        )


def _case(
    where: str, channels: list[str], header: dict[str, list[str]], before: list[np.ndarray]
) -> np.ndarray:
    """Return the values of a case, (step, channel)."""
    if not channels:
        raise InputError(f"{where}: a case is channel:…:channel:class, and here is no colon")
    try:
        values = [np.array(text.replace(MISSING, "nan").split(","), dtype=np.float64) for text in channels]
    except ValueError as error:
        raise InputError(
            f"{where}: {error}; values are numbers between commas, a missing one is {MISSING}"
        ) from None
    if any(np.isinf(channel).any() for channel in values):
        raise InputError(f"{where}: a value is infinite; a missing one is {MISSING}")
    if len({len(channel) for channel in values}) > 1:
        lengths = ", ".join(str(len(channel)) for channel in values[:8])
        raise InputError(
            f"{where}: the channels of a case must have one length, but they have {lengths} values"
        )
    stated = header.get("dimensions") or header.get("dimension") or []
    wanted = (
        before[0].shape[1] if before else int(stated[0]) if stated and stated[0].isdecimal() else len(values)
    )
    if len(values) != wanted:
        whose = "the cases before have" if before else "the header (@dimensions) says"
        raise InputError(f"{where}: a case with {len(values)} channels, and {whose} {wanted}")
    return np.stack(values, axis=1)


def _label(where: str, label: str, header: dict[str, list[str]]) -> str:
    stated_classes = header["classlabel"][1:]
    if not label or (stated_classes and label not in stated_classes):
        raise InputError(
            f"{where}: class {label!r} is not among those of the header, {', '.join(stated_classes[:8])}"
        )
    return label
