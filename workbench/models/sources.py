"""Where models come from: timm, Hugging Face, the papers' authors, and checkpoints of ``workbench study train``.

Each function returns a :class:`Source`: the module with its weights, on the CPU, and what is needed to feed
it. Weights are read as safetensors or with ``weights_only=True``; code that comes with weights is never run.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from workbench.core.errors import InputError, UnknownName, WorkbenchError
from workbench.frames.results import RANDOM_WEIGHTS
from workbench.models import hub
from workbench.models.checkpoints import require_file

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

_SAFE_FILES = ("model.safetensors", "pytorch_model.bin")
_WRAPPINGS = ("state_dict_ema", "model_ema", "state_dict", "model")
_TIMM_PLACES = ("hf-hub", "hf_hub", "local-dir")
_GPT2, _GPT2_TOKENS = "openai-community/gpt2", 50257


@dataclass
class ImageFormat:
    """What an image model receives: (channels, *size), normalised by mean and std, one number per channel."""

    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    own: Callable[[Image], Tensor] | None = None
    """The model's own preprocessing of one picture; None where the model states none."""
    recorded: bool = False
    """Trained here: resizing to `size`, mean and std are what it was trained with, and used in every mode."""


@dataclass
class Source:
    """A module with its weights, and how to feed it."""

    module: nn.Module
    family: str
    modality: str
    checkpoint: str | None = None
    image: ImageFormat | None = None
    max_length: int | None = None
    """Longest text in tokens; None for image models and for text models without a limit."""
    load_tokenizer: Callable[[], PreTrainedTokenizerBase] | None = None
    meta: dict[str, Any] | None = None
    """What a checkpoint trained here says of itself; None for others."""


# timm -------------------------------------------------------------------------------------------------------


def check_timm(name: str, checkpoint: str | None, pretrained: bool) -> None:
    """Raise `UnknownName` or `InputError` for what `from_timm` will not find; reads no weights and asks no hub."""
    import timm
    from timm.models import get_pretrained_cfg, split_model_name_tag

    if name.partition(":")[0] in _TIMM_PLACES:
        if checkpoint is not None:
            raise InputError(f"timm:{name} brings its own weights; leave checkpoint={checkpoint!r} out")
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
            f"timm has no trained weights for {architecture}; pass pretrained=False for random ones, or "
            "checkpoint=FILE for a file of your own"
        )


def from_timm(name: str, checkpoint: str | None, pretrained: bool) -> Source:
    """A timm model by name (``NAME`` or ``NAME.TAG``); `checkpoint` is a local file of weights.

    ``hf-hub:OWNER/NAME`` and ``local-dir:FOLDER`` are timm's own ways to name a model with its configuration.
    """
    import timm

    check_timm(name, checkpoint, pretrained)
    place, _, where = name.partition(":")
    if place in _TIMM_PLACES:
        architecture, module = _timm_from(place, where, pretrained)
        checkpoint = None if pretrained else RANDOM_WEIGHTS
        return Source(module, _timm_family(architecture), "image", checkpoint, _timm_format(module))
    architecture = timm.models.split_model_name_tag(name)[0]
    if checkpoint is not None:
        module = _timm_with_file(architecture, Path(checkpoint).expanduser())
    elif not pretrained:
        with _seeded():
            module = timm.create_model(architecture, pretrained=False)
        checkpoint = RANDOM_WEIGHTS
    else:
        module = _timm_pretrained(name)
    return Source(module, _timm_family(architecture), "image", checkpoint, _timm_format(module))


def _timm_family(architecture: str) -> str:
    import timm

    family = timm.model_entrypoint(architecture).__module__.rpartition(".")[2]
    short = {"vision_transformer": "vit", "swin_transformer": "swin", "swin_transformer_v2": "swinv2"}
    return short.get(family, family)


def _timm_from(place: str, where: str, pretrained: bool) -> tuple[str, nn.Module]:
    """A timm model that comes with its configuration, in a folder or on the hub: (architecture, module)."""
    import timm

    what = f"timm:{place}:{where}"
    if place != "local-dir":
        cached = hub.cached_file(where, ["config.json"])
        if cached and (hub.cached_file(where, _SAFE_FILES) or not pretrained):
            place, where = "local-dir", str(Path(cached).parent)
        elif (problem := hub.obstacle()) is not None:
            raise hub.missing(what, where, problem)
    try:
        with _seeded():
            module = hub.download(
                what, where, lambda: timm.create_model(f"{place}:{where}", pretrained=pretrained)
            )
    except FileNotFoundError as error:
        raise InputError(
            f"{what}: expected config.json and model.safetensors in {where} ({error})"
        ) from error
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(f"{what} cannot be loaded: {_first_lines(error)}") from error
    settings: Any = module.pretrained_cfg
    return settings["architecture"], module


def _timm_pretrained(name: str) -> nn.Module:
    import timm
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(name)
    repo = getattr(config, "hf_hub_id", None)
    if not repo:  # a few weights live outside the hub
        if hub.switched_off():
            raise hub.missing(
                f"timm:{name}", str(getattr(config, "url", name)), "not asked (HF_HUB_OFFLINE is set)"
            )
        return timm.create_model(name, pretrained=True)
    wanted = getattr(config, "hf_hub_filename", None)
    cached = hub.cached_file(repo, [wanted] if wanted else _SAFE_FILES)
    if cached is None and (problem := hub.obstacle()) is not None:
        raise hub.missing(f"timm:{name}", repo, problem)
    options: dict[str, Any] = {}
    # By path: by name, timm asks the hub about a cached file too, and waits long where there is none. Files
    # with names of their own are left to the model's own reader.
    if cached is not None and not wanted:
        options = {"pretrained_cfg_overlay": {"file": cached, "custom_load": False}}
    try:
        return hub.download(f"timm:{name}", repo, lambda: timm.create_model(name, pretrained=True, **options))
    except (OSError, RuntimeError, SafetensorError) as error:
        where = f"the cached {cached}" if cached else repo
        raise InputError(f"timm:{name}: {where} cannot be read ({_first_lines(error)})") from error


def _timm_with_file(architecture: str, path: Path) -> nn.Module:
    import timm

    state = _read_state(path)
    overlay: dict[str, Any] = {"state_dict": state}
    options = {}
    classifier = timm.models.get_pretrained_cfg(architecture, allow_unregistered=False)
    head = getattr(classifier, "classifier", None)
    head = head[0] if isinstance(head, tuple) else head
    if head and f"{head}.weight" in state:  # trained on other classes than the published weights
        options["num_classes"] = overlay["num_classes"] = len(state[f"{head}.weight"])
    try:
        return timm.create_model(architecture, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    except (RuntimeError, KeyError, ValueError) as error:
        raise InputError(f"{path} does not fit {architecture}: {_first_lines(error)}") from error


def _read_state(path: Path, wrappings: tuple[str, ...] = _WRAPPINGS) -> dict[str, Tensor]:
    """A state dict from a ``.safetensors``, ``.pt`` or ``.pth`` file, out of the first of its wrappings."""
    from safetensors.torch import load_file

    from workbench.models.checkpoints import read_torch_file

    if path.suffix == ".safetensors":
        require_file(path)
        try:
            return _without_prefix(load_file(path))
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{path} is not a readable safetensors file ({error}); it may be truncated"
            ) from error
    content = read_torch_file(path)
    for key in wrappings:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not any(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise InputError(
            f"{path} holds no weights: expected a state dict, or one under 'model' or 'state_dict'"
        )
    return _without_prefix(content)


def _without_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without what torch puts before them around a parallel or compiled model."""
    return {re.sub(r"^(module\.|_orig_mod\.)+", "", name): value for name, value in state.items()}


def _timm_format(module: nn.Module) -> ImageFormat:
    import timm.data

    config = timm.data.resolve_model_data_config(module)
    channels, height, width = config["input_size"]
    transform = timm.data.create_transform(**config, is_training=False)
    return ImageFormat((height, width), channels, tuple(config["mean"]), tuple(config["std"]), transform)


# Hugging Face -----------------------------------------------------------------------------------------------


def check_hugging_face(name: str, checkpoint: str | None) -> None:
    """Raise for a folder that is not there or holds no model, and for what no hub repository can be called."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        _checkpoint_folder(folder, checkpoint)
    else:
        _check_repo_name(name)


def from_hugging_face(
    name: str, checkpoint: str | None, pretrained: bool, dtype: torch.dtype | None
) -> Source:
    """A model of transformers from a folder or a hub repository.

    `checkpoint` is a subfolder of a folder (``checkpoint-500``), or a revision of a repository.
    """
    from transformers import AutoConfig

    folder = Path(name).expanduser()
    is_folder = folder.is_dir()
    options: dict[str, Any] = {"trust_remote_code": False}
    check_hugging_face(name, checkpoint)
    if is_folder:
        where = str(_checkpoint_folder(folder, checkpoint))
    else:
        where = name
        if checkpoint not in (None, RANDOM_WEIGHTS):
            options["revision"] = checkpoint
    fetch = _fetcher(f"hf:{name}", where, is_folder)
    config = fetch(lambda local: AutoConfig.from_pretrained(where, local_files_only=local, **options))
    auto = _auto_class(config)
    if pretrained:
        load = _pretrained_loader(auto, where, config, dtype, options)
        with _seeded():  # a pooler that the weights leave out is drawn at random: always the same one
            module, report = fetch(load)
        _check_complete(f"hf:{name}", report)
    else:
        with _seeded():
            module = auto.from_config(config, dtype=dtype or torch.float32)
        checkpoint = RANDOM_WEIGHTS

    def tokenizer() -> PreTrainedTokenizerBase:
        return _load_tokenizer(fetch, f"hf:{name}", where, options)

    modality = _hf_modality(module, config)
    if modality == "image":
        image = _hf_format(fetch, where, config, options)
        return Source(module, config.model_type, modality, checkpoint, image)
    if modality == "other":
        return Source(module, config.model_type, modality, checkpoint)
    limit = _position_limit(module, config)
    return Source(module, config.model_type, "text", checkpoint, max_length=limit, load_tokenizer=tokenizer)


def _hf_modality(module: nn.Module, config: Any) -> str:
    """``"image"`` or ``"text"``; ``"other"`` for sound, several kinds at once, and encoder–decoders."""
    several = hasattr(config, "vision_config") and hasattr(config, "text_config")
    if several or getattr(config, "is_encoder_decoder", False):
        return "other"
    kinds = {"pixel_values": "image", "input_ids": "text"}
    return kinds.get(getattr(module, "main_input_name", ""), "other")


def _checkpoint_folder(folder: Path, checkpoint: str | None) -> Path:
    chosen = folder if checkpoint in (None, RANDOM_WEIGHTS) else folder / str(checkpoint)
    if (chosen / "config.json").is_file():
        return chosen
    if not chosen.is_dir():
        raise UnknownName(
            f"checkpoint of {folder}", str(checkpoint), _model_folders(folder), "its subfolders"
        )
    inside = _model_folders(chosen)
    hint = f"; its subfolders {', '.join(inside)} have one" if inside else ""
    raise InputError(
        f"{chosen} has no config.json{hint}. A Hugging Face folder holds config.json and model.safetensors, "
        "as model.save_pretrained(FOLDER) writes them"
    )


def _model_folders(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/config.json"))


def _check_repo_name(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
    try:
        validate_repo_id(name)
    except HFValidationError:
        looks_local = True
    if looks_local:
        raise InputError(f"there is no folder or file {name}, and a hub repository is written OWNER/NAME")


def _fetcher(what: str, where: str, is_folder: bool) -> Callable[[Callable[[bool], Any]], Any]:
    """A function that runs a loading step on the folder, or on the cache and then the hub."""

    def run(step: Callable[[bool], Any]) -> Any:
        try:
            with _quiet_transformers():
                return step(True) if is_folder else hub.from_cache_or_hub(what, where, step)
        except WorkbenchError:
            raise
        except (SafetensorError, EOFError, UnicodeDecodeError) as error:
            raise InputError(
                f"{what}: a file of weights cannot be read ({error}); it may be truncated"
            ) from error
        except (OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
            raise InputError(f"{what} cannot be loaded: {_first_lines(error)}") from error

    return run


def _auto_class(config: Any) -> Any:
    """``AutoModelForCausalLM`` for causal architectures, so that logits exist; ``AutoModel`` for others."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    names = config.architectures or []
    if names:
        causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
    else:  # BERT can be run as a causal model too, so being able to is not enough
        causal = (
            config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            and config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        )
    return AutoModelForCausalLM if causal else AutoModel


def _pretrained_loader(
    auto: Any, where: str, config: Any, dtype: torch.dtype | None, options: dict[str, Any]
) -> Callable[[bool], tuple[nn.Module, dict[str, Any]]]:
    def load(local: bool) -> tuple[nn.Module, dict[str, Any]]:
        chosen = dtype or "auto"
        return auto.from_pretrained(
            where, config=config, dtype=chosen, local_files_only=local, output_loading_info=True, **options
        )

    return load


def _check_complete(what: str, report: dict[str, Any]) -> None:
    # Poolers and heads are often left out of published weights and take no part in attention.
    absent = sorted(
        name for name in report["missing_keys"] if not re.search(r"pooler|lm_head|classifier", name)
    )
    if absent:
        raise InputError(
            f"{what}: its weights lack {len(absent)} tensors ({', '.join(absent[:3])}, …), which would be "
            "random; the folder's config.json and weights do not belong together"
        )


def _position_limit(module: nn.Module, config: Any) -> int | None:
    """Longest sequence the model has positions for; None where positions are relative and unlimited."""
    for name, child in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(child, torch.nn.Embedding):
            # RoBERTa and its kin count positions from padding_idx + 1.
            used = 0 if child.padding_idx is None else child.padding_idx + 1
            return child.num_embeddings - used
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit and limit > 0 else None  # XLNet says -1


def _load_tokenizer(fetch: Callable[..., Any], what: str, where: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    remedy = "save one beside the model with tokenizer.save_pretrained(FOLDER)"
    try:
        tokenizer = fetch(
            lambda local: AutoTokenizer.from_pretrained(where, local_files_only=local, **options)
        )
    except InputError as error:
        raise InputError(f"{what} has no tokenizer that can be read; {remedy} ({error})") from error
    # Without its files transformers may make a tokenizer that knows no words and calls every text unknown.
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
        raise InputError(f"{what} has no tokenizer: no vocabulary is beside the weights; {remedy}")
    tokenizer.padding_side = "right"
    tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        # GPT-2 and others were trained without padding. What stands in its place is masked, so any will do.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def _hf_format(
    fetch: Callable[..., Any], where: str, config: Any, options: dict[str, Any]
) -> ImageFormat | None:
    from transformers import AutoImageProcessor

    size = getattr(config, "image_size", None)
    if size is None:
        return None  # no fixed size: only the caller knows what to feed it
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    channels = config.num_channels
    plain = ImageFormat((height, width), channels, (0.5,) * channels, (0.5,) * channels)
    try:
        processor = fetch(
            lambda local: AutoImageProcessor.from_pretrained(where, local_files_only=local, **options)
        )
    except WorkbenchError:
        return plain  # no preprocessor_config.json: the model states no preprocessing of its own

    def own(picture: Image) -> Tensor:
        return processor(images=picture, return_tensors="pt")["pixel_values"][0]

    if not getattr(processor, "do_normalize", False):
        return ImageFormat((height, width), channels, (0.0,) * channels, (1.0,) * channels, own)
    mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    return ImageFormat((height, width), channels, mean, std, own)


@contextlib.contextmanager
def _quiet_transformers() -> Generator[None]:
    """No bars and no table of leftover keys while loading: what matters of it is checked and raised here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# Models of the papers' authors ------------------------------------------------------------------------------


def check_authors(kind: str, size: str, checkpoint: str | None) -> None:
    """Raise for a size that is not published, and for a file that is not there."""
    from workbench.models.architectures.published import PUBLISHED

    if size not in PUBLISHED[kind]:
        raise UnknownName(f"size of {kind}", size, PUBLISHED[kind])
    if checkpoint is not None:
        require_file(Path(checkpoint).expanduser())


def from_authors(kind: str, size: str, checkpoint: str | None, pretrained: bool) -> Source:
    """ToST (``kind`` "tost") or CRATE ("crate") at a published size; `checkpoint` is a file of their authors'.

    Without a file the weights are random, and the checkpoint's name says so: none can be fetched.
    """
    from workbench.models.architectures import build
    from workbench.models.architectures.published import PUBLISHED

    check_authors(kind, size, checkpoint)
    if checkpoint is None or not pretrained:
        if pretrained:
            warnings.warn(
                f"{kind}:{size} has random weights: none are published where they could be fetched from; give a "
                "file of them as checkpoint",
                stacklevel=3,
            )
        with _seeded():
            module = build(dict(PUBLISHED[kind][size].architecture))
        checkpoint = RANDOM_WEIGHTS
    else:
        module = _authors_file(kind, size, Path(checkpoint).expanduser())
    if hasattr(module, "max_length"):
        return _gpt2_reader(f"{kind}:{size}", module, checkpoint)
    return Source(module, kind, "image", checkpoint, _imagenet_format(crop=1.0 if kind == "tost" else 0.875))


def _authors_file(kind: str, size: str, path: Path) -> nn.Module:
    from workbench.models.architectures import attention_of, build
    from workbench.models.architectures.published import PUBLISHED, fitting, take
    from workbench.models.checkpoints import load_weights

    state = _read_state(path, wrappings=("model", "state_dict"))  # not the averages beside them
    architecture = fitting(kind, size, state, str(path))
    with _seeded():
        module = build(architecture)
    weights, left_out = take(PUBLISHED[kind][size], module, state, str(path))
    stored = next(value.dtype for value in weights.values() if value.is_floating_point())
    load_weights(module.to(stored), weights, str(path), attention=attention_of(architecture))
    if left_out:
        warnings.warn(f"{path}: {left_out}", stacklevel=4)
    return module


def _imagenet_format(crop: float) -> ImageFormat:
    """Images of 224×224 as these models were trained and tested on; ``crop`` is the central share kept."""
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform

    own: Any = create_transform(224, interpolation="bicubic" if crop == 1 else "bilinear", crop_pct=crop)
    return ImageFormat((224, 224), 3, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, own)


def _gpt2_reader(what: str, module: Any, checkpoint: str | None) -> Source:
    """A language model trained on GPT-2's tokens."""
    known = module.get_input_embeddings().num_embeddings

    def tokenizer() -> PreTrainedTokenizerBase:
        if known < _GPT2_TOKENS:
            raise InputError(
                f"{what} with a vocabulary of {known} was not trained on GPT-2's {_GPT2_TOKENS} tokens: hand "
                "workbench.capture input_ids of your own"
            )
        return _load_tokenizer(_fetcher(f"hf:{_GPT2}", _GPT2, False), f"hf:{_GPT2}", _GPT2, {})

    return Source(module, "tost", "text", checkpoint, max_length=module.max_length, load_tokenizer=tokenizer)


# Checkpoints of this project --------------------------------------------------------------------------------


def from_checkpoint(path: Path, checkpoint: str | None, pretrained: bool) -> Source:
    """A model from a file that ``workbench study train`` wrote; `checkpoint` is the name it goes by."""
    from workbench.attention.bilateral import precompute_positions
    from workbench.models.architectures import build
    from workbench.models.checkpoints import read_checkpoint, restore

    if pretrained:
        module, meta = restore(path)
        precompute_positions(module)
    else:
        meta = read_checkpoint(path)[1]
        with _seeded():
            module = build(meta["architecture"])
        checkpoint = RANDOM_WEIGHTS
    about = meta["preprocessing"]
    architecture = meta["architecture"]
    if "characters" in about:
        return _character_model(path, module, checkpoint, meta)
    if architecture["name"] == "sequence":
        return _sequence_model(module, checkpoint, about)
    mean, std = tuple(about["mean"]), tuple(about["std"])
    side = int(about["resize"])
    image = ImageFormat((side, side), len(mean), mean, std, recorded=True)
    return Source(module, architecture["name"], "image", checkpoint, image, meta=meta)


def _character_model(path: Path, module: Any, checkpoint: str | None, meta: dict[str, Any]) -> Source:
    from workbench.models.tokenizer import SPECIAL, character_tokenizer

    characters, limit = meta["preprocessing"]["characters"], module.max_length
    has, needs = module.get_input_embeddings().num_embeddings, len(characters) + len(SPECIAL)
    if has != needs:
        raise InputError(
            f"{path} names {len(characters)} characters, which with {' and '.join(SPECIAL)} make {needs} tokens, but "
            f"its model knows {has}"
        )
    name = meta["architecture"]["name"]
    return Source(
        module,
        name,
        "text",
        checkpoint,
        max_length=limit,
        load_tokenizer=lambda: character_tokenizer(characters, limit),
        meta=meta,
    )


def _sequence_model(module: Any, checkpoint: str | None, about: dict[str, Any]) -> Source:
    """A classifier of sequences: texts are fed to one of bytes or words, tensors of one's own to the others."""
    from workbench.models.tokenizer import byte_tokenizer, word_tokenizer

    limit = module.max_length
    tokenizers: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
        "bytes": lambda: byte_tokenizer(limit),
        "words": lambda: word_tokenizer(about["words"], about["dropped"], limit),
    }
    load = tokenizers.get(about.get("tokens", ""))
    if load is None:
        return Source(module, "sequence", "other", checkpoint)
    return Source(module, "sequence", "text", checkpoint, max_length=limit, load_tokenizer=load)


# ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _seeded() -> Generator[None]:
    """Random weights from seed 0, so that two loads agree; the caller's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _first_lines(error: BaseException) -> str:
    """The start of a library's message, on one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300].rsplit(" ", 1)[0] + " …"
