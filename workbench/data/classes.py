"""Which outputs of a model the classes of a folder are."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.core.errors import InputError

IMAGENET_CLASSES = 1000


def class_places(folders: Sequence[str], outputs: int, known: Sequence[str] = ()) -> list[int]:
    """The number of each class folder among a model's ``outputs``, in the order of the folders.

    As many folders as outputs are these, one after another. Fewer are found by name: among the names that the model is
    ``known`` to have been trained on, or else, for 1000 outputs, among the WordNet ids of ImageNet-1K (n01440764, …),
    which its models list in the order of the ids. ImageNet-A, -R and -O have 200 of them (teo2024 App. A.1).

    Raises InputError for more folders than outputs, for names that are not among them, and where nothing tells which
    outputs fewer folders are.
    """
    if len(folders) == outputs:
        return list(range(outputs))
    what = f"{len(folders)} class folders ({', '.join(folders[:3])}{', …' * (len(folders) > 3)})"
    wanted = f"a folder for each of its {outputs} classes"
    if len(known) != outputs:
        if outputs != IMAGENET_CLASSES:
            raise InputError(
                f"there are {what}, and the model has {outputs} outputs, whose names are not known; give {wanted}, or "
                f"take a model of the {IMAGENET_CLASSES} classes of ImageNet-1K for a subset of them"
            )
        known = _imagenet_synsets()
        wanted += ", or folders named by their WordNet ids in ImageNet-1K (n01440764, …)"
    else:
        wanted += f", or some named as they are ({', '.join(known[:3])}, …)"
    numbers = {name: number for number, name in enumerate(known)}
    unknown = [name for name in folders if name not in numbers]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise InputError(
            f"there are {what}, and {', '.join(unknown[:3])}{more} {'is' if len(unknown) == 1 else 'are'} none of the "
            f"{outputs} classes of the model; give {wanted}"
        )
    return [numbers[name] for name in folders]


def _imagenet_synsets() -> list[str]:
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return [info.index_to_label_name(number) for number in range(info.num_classes())]
