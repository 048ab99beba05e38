"""Outputs of a model for the classes of a folder, and for a named class or token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.core.errors import InputError, UnknownName

_IMAGENET_CLASSES = 1000


def class_indices(folders: Sequence[str], outputs: int, names: Sequence[str] = ()) -> list[int]:
    """Return the output index of each class folder, in the order of the folders.

    If there is a folder for every output, the order is that of the outputs. Fewer folders are matched by name: with the
    class ``names`` that the model was trained on, or else, for 1000 outputs, with the WordNet ids of ImageNet-1K
    (n01440764, …), which its models list in the order of the ids. ImageNet-A, -R and -O have 200 of them (teo2024 App.
    A.1).

    Raises InputError for more folders than outputs, for unknown names, and where fewer folders cannot be matched.
    """
    if len(folders) == outputs:
        return list(range(outputs))
    what = f"{len(folders)} class folders ({', '.join(folders[:3])}{', …' if len(folders) > 3 else ''})"
    wanted = f"a folder for each of its {outputs} classes"
    if len(names) != outputs:
        if outputs != _IMAGENET_CLASSES:
            raise InputError(
                f"there are {what}, and the model has {outputs} outputs, whose names are not known; give {wanted}, or "
                f"take a model of the {_IMAGENET_CLASSES} classes of ImageNet-1K for a subset of them"
            )
        names = _imagenet_synsets()
        wanted += ", or folders named by their WordNet ids in ImageNet-1K (n01440764, …)"
    else:
        wanted += f", or some named as they are ({', '.join(names[:3])}, …)"
    numbers = {name: number for number, name in enumerate(names)}
    unknown = [name for name in folders if name not in numbers]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise InputError(
            f"there are {what}, and {', '.join(unknown[:3])}{more} {'is' if len(unknown) == 1 else 'are'} none of the "
            f"{outputs} classes of the model; give {wanted}"
        )
    return [numbers[name] for name in folders]


def outcome_index(name: str, classes: Sequence[str] = (), tokenizer: Any = None) -> int:
    """Return the output index of a token or class by its name, or by its number for a model without names.

    A token is one that continues a text: " Mary" if it is one token, else "Mary". Raises `InputError` for several
    tokens, and `UnknownName` for a class that the model lacks.
    """
    if tokenizer is not None:
        tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {name}", name)]
        known = [ids[0] for ids in tokens if len(ids) == 1 and ids[0] != tokenizer.unk_token_id]
        if not known:
            parts = " ".join(tokenizer.convert_ids_to_tokens(tokens[1]))
            raise InputError(
                f"{name!r} is not one token of the model ({parts}); name an outcome that is one token"
            )
        return known[0]
    if not classes and name.isdecimal():
        return int(name)
    if name not in classes:
        raise UnknownName("class", name, classes, "" if classes else "give its number")
    return classes.index(name)


def _imagenet_synsets() -> list[str]:
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return [info.index_to_label_name(number) for number in range(info.num_classes())]
