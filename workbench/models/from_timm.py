"""Models of timm, with published weights, weights from a file, or random weights."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from annotated_types import Ge, Len
from safetensors import SafetensorError
from typing_extensions import TypedDict

from workbench.core.errors import InputError, UnknownName, WorkbenchError
from workbench.core.options import conforming, parsed
from workbench.frames.results import RANDOM_WEIGHTS
from workbench.models import hub
from workbench.models.source import (
    ImageFormat,
    Source,
    Unfilled,
    bounded_by_memory,
    bounded_by_weights,
    first_lines,
    fitting_state,
    in_our_words,
    read_state,
    require_content,
    require_file,
    seeded,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_SAFE_FILES = ("model.safetensors", "pytorch_model.bin")
_PLACES = ("hf-hub", "hf_hub", "local-dir")


class _Weights(TypedDict, total=False):
    """The keys about weights that timm reads in a configuration; null counts as missing."""

    num_classes: Annotated[int, Ge(0)] | None
    input_size: Annotated[list[Annotated[int, Ge(1)]], Len(3, 3)] | None
    mean: list[float] | None
    std: list[float] | None


class _Configuration(_Weights):
    """A config.json of timm, whose keys about weights may also be at the top level, as in old files."""

    architecture: str
    pretrained_cfg: NotRequired[_Weights]
    model_args: NotRequired[dict[str, Any] | None]


def check(name: str, checkpoint: str | None, pretrained: bool) -> None:
    """Raise `UnknownName` or `InputError` for what `load` will not find; reads no weights and asks no hub."""
    from timm.models import get_pretrained_cfg, split_model_name_tag

    from workbench.core.light_timm import timm

    if name.partition(":")[0] in _PLACES:
        if checkpoint is not None:
            raise InputError(f"timm:{name} brings its own weights; leave @{checkpoint} out")
        return
    architecture, tag = split_model_name_tag(name)
    if not timm.is_model(architecture):
        raise UnknownName("timm model", architecture, timm.list_models(), f"timm {timm.__version__}")
    tags = [full.partition(".")[2] for full in timm.list_models(f"{architecture}.*", pretrained=True)]
    if tag and tag not in tags:
        raise UnknownName(f"weights of {architecture}", tag, tags, "the part of a timm name after the dot")
    if checkpoint is not None:
        require_file(Path(checkpoint).expanduser())
    elif pretrained and not getattr(get_pretrained_cfg(name), "has_weights", False):
        raise InputError(
            f"timm has no trained weights for {architecture}; take timm:{architecture}@random for random weights, or "
            "@FILE for your own file"
        )


def load(
    name: str, checkpoint: str | None, pretrained: bool, options: Mapping[str, Any] = MappingProxyType({})
) -> Source:
    """Load a timm model by name (``NAME`` or ``NAME.TAG``); `checkpoint` is a local file of weights.

    ``options`` are arguments of the model. ``hf-hub:OWNER/NAME`` and ``local-dir:FOLDER`` are timm's own ways to name a
    model with its configuration.
    """
    check(name, checkpoint, pretrained)
    scheme, _, where = name.partition(":")
    with _options_explained(f"timm:{name}", options):
        return _load(name, scheme, where, checkpoint, pretrained, options)


@contextlib.contextmanager
def _options_explained(what: str, options: Mapping[str, Any]) -> Generator[None]:
    """Raise `InputError` for an option that the model does not take."""
    try:
        yield
    except WorkbenchError:
        raise
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        if not options:
            raise
        listed = ", ".join(f"{key}={value}" for key, value in options.items())
        raise InputError(f"{what} cannot be built with {listed}: {first_lines(error)}") from error


def _load(
    name: str, scheme: str, where: str, checkpoint: str | None, pretrained: bool, options: Mapping[str, Any]
) -> Source:
    from workbench.core.light_timm import timm

    if scheme in _PLACES:
        architecture, module, image = _with_configuration(scheme, where, pretrained, options)
        checkpoint = None if pretrained else RANDOM_WEIGHTS
        return Source(module, _family(architecture), "image", checkpoint, image)
    architecture = timm.models.split_model_name_tag(name)[0]
    if checkpoint is not None:
        module = _with_file(architecture, Path(checkpoint).expanduser(), options)
    elif not pretrained:
        with seeded(), bounded_by_memory(f"timm:{name}"):
            module = timm.create_model(architecture, pretrained=False, **options)
        checkpoint = RANDOM_WEIGHTS
    else:
        module = _pretrained(name, options)
    return Source(module, _family(architecture), "image", checkpoint, image_format(module))


def _family(architecture: str) -> str:
    from workbench.core.light_timm import timm

    family = timm.model_entrypoint(architecture).__module__.rpartition(".")[2]
    short = {"vision_transformer": "vit", "swin_transformer": "swin", "swin_transformer_v2": "swinv2"}
    return short.get(family, family)


def _with_configuration(
    scheme: str, where: str, pretrained: bool, options: Mapping[str, Any]
) -> tuple[str, nn.Module, ImageFormat]:
    """A timm model with its configuration, in a folder or on the hub: its architecture, itself, and how to feed it."""
    from workbench.core.light_timm import timm

    what = f"timm:{scheme}:{where}"
    if scheme != "local-dir":
        cached = hub.cached_file(where, ["config.json"])
        if cached and (hub.cached_file(where, _SAFE_FILES) or not pretrained):
            scheme, where = "local-dir", str(Path(cached).parent)
        elif (problem := hub.obstacle()) is not None:
            raise hub.missing(what, where, problem)
    if scheme == "local-dir":
        _check_configuration(Path(where) / "config.json", what)
        for file in _SAFE_FILES:
            require_content(Path(where) / file)
    try:
        local = pretrained and scheme == "local-dir" and Path(where).is_dir()
        with seeded(), bounded_by_weights(where, what) if local else bounded_by_memory(what):
            module = hub.download(
                what, where, lambda: timm.create_model(f"{scheme}:{where}", pretrained=pretrained, **options)
            )
        settings: Any = module.pretrained_cfg
        return settings["architecture"], module, image_format(module)
    except FileNotFoundError as error:
        raise InputError(
            f"{what}: expected config.json and model.safetensors in {where} ({error})"
        ) from error
    except WorkbenchError:
        raise
    except Exception as error:  # timm believes what a config.json says, whatever that is
        raise InputError(f"{what} cannot be loaded: {in_our_words(error)}") from error


def _check_configuration(path: Path, what: str) -> None:
    """Raise InputError for a config.json that timm would only stumble over; one that is missing timm names."""
    if not path.is_file():
        return
    try:
        conforming(_Configuration, parsed(path.read_bytes()))
    except ValueError as error:
        raise InputError(
            f"{what} cannot be loaded: {path} is no configuration of a timm model ({error}); take the file as timm or "
            "the hub wrote it"
        ) from error


def _pretrained(name: str, options: Mapping[str, Any]) -> nn.Module:
    from timm.models import get_pretrained_cfg

    from workbench.core.light_timm import timm

    config = get_pretrained_cfg(name)
    repo = getattr(config, "hf_hub_id", None)
    if not repo:  # a few weights live outside the hub
        if hub.switched_off():
            raise hub.missing(
                f"timm:{name}", str(getattr(config, "url", name)), "not asked (HF_HUB_OFFLINE is set)"
            )
        return timm.create_model(name, pretrained=True, **options)
    wanted = getattr(config, "hf_hub_filename", None)
    cached = hub.cached_file(repo, [wanted] if wanted else _SAFE_FILES)
    if cached is None and (problem := hub.obstacle()) is not None:
        raise hub.missing(f"timm:{name}", repo, problem)
    placing: dict[str, Any] = {}
    # By path: by name, timm asks the hub about a cached file too, and waits long where there is none. Files
    # with names of their own are left to the model's own reader.
    if cached is not None and not wanted:
        placing = {"pretrained_cfg_overlay": {"file": cached, "custom_load": False}}
    try:
        return hub.download(
            f"timm:{name}", repo, lambda: timm.create_model(name, pretrained=True, **placing, **options)
        )
    except (OSError, RuntimeError, SafetensorError) as error:
        where = f"the cached {cached}" if cached else repo
        raise InputError(f"timm:{name}: {where} cannot be read ({first_lines(error)})") from error


def _with_file(architecture: str, path: Path, options: Mapping[str, Any]) -> nn.Module:
    import torch

    from workbench.core.light_timm import timm

    with torch.device("meta"), Unfilled():
        plain = timm.create_model(architecture, pretrained=False, **options)
    state = fitting_state(read_state(path), plain.state_dict(), path)
    _check_size(plain, state, architecture, path, asked="img_size" in options)
    overlay: dict[str, Any] = {"state_dict": state}
    options = {**options}
    classifier = timm.models.get_pretrained_cfg(architecture, allow_unregistered=False)
    head = getattr(classifier, "classifier", None)
    head = head[0] if isinstance(head, tuple) else head
    if head and f"{head}.weight" in state:  # trained on other classes than the published weights
        options["num_classes"] = overlay["num_classes"] = len(state[f"{head}.weight"])
    try:
        return timm.create_model(architecture, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    except (RuntimeError, KeyError, ValueError) as error:
        raise InputError(f"{path} does not fit {architecture}: {first_lines(error)}") from error


def _check_size(
    module: nn.Module, state: Mapping[str, Tensor], architecture: str, path: Path, *, asked: bool
) -> None:
    """Raise `InputError` for weights of images of another size than the model's, which timm would resample.

    Where that size was ``asked`` for, a warning names both.
    """
    model_positions, saved_positions = module.state_dict().get("pos_embed"), state.get("pos_embed")
    embedding = getattr(module, "patch_embed", None)
    if (
        model_positions is None
        or saved_positions is None
        or model_positions.shape == saved_positions.shape
        or model_positions.ndim != 3
        or saved_positions.ndim != 3
    ):
        return
    grid, patch = getattr(embedding, "grid_size", None), getattr(embedding, "patch_size", None)
    if model_positions.shape[2] != saved_positions.shape[2] or grid is None or patch is None:
        return
    prefix = model_positions.shape[1] - grid[0] * grid[1]
    side = math.isqrt(max(0, saved_positions.shape[1] - prefix))
    sizes = f"{model_positions.shape[1]} positions in {architecture}, {saved_positions.shape[1]} in the file"
    if side**2 + prefix != saved_positions.shape[1]:
        raise InputError(
            f"{path} does not fit {architecture}: {sizes}; give the arguments that it was trained with"
        )
    size = (side * patch[0], side * patch[1])
    if asked:
        warnings.warn(
            f"{path}: positions are resampled from images of {size[0]} × {size[1]} ({sizes})", stacklevel=4
        )
        return
    text = str(size[0]) if size[0] == size[1] else f"[{size[0]},{size[1]}]"
    raise InputError(
        f"{path} is of images of {size[0]} × {size[1]} ({sizes}): load timm:{architecture}?img_size={text}@{path}"
    )


def image_format(module: nn.Module) -> ImageFormat:
    """Return the images of a timm model, prepared as its configuration says."""
    import torch
    from timm.data import create_transform, resolve_model_data_config

    config = resolve_model_data_config(module)
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if size is not None:  # an argument of the model may differ from its published configuration
        config["input_size"] = (config["input_size"][0], *size)
    channels, height, width = config["input_size"]
    with torch.device("cpu"):
        transform = create_transform(**config, is_training=False)
    return ImageFormat((height, width), channels, tuple(config["mean"]), tuple(config["std"]), transform)
