"""Models of transformers, from a folder or a repository of the hub."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from workbench.core.complete_module import complete_module
from workbench.core.errors import InputError, UnknownName, WorkbenchError
from workbench.core.options import parsed
from workbench.frames.results import RANDOM_WEIGHTS
from workbench.models import hub
from workbench.models.source import (
    WEIGHTS,
    ImageFormat,
    Source,
    Unfilled,
    bounded_by_memory,
    bounded_by_weights,
    fitting_state,
    in_our_words,
    read_state,
    require_content,
    require_file,
    seeded,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase


def check(name: str, checkpoint: str | None) -> None:
    """Raise for a missing folder, a folder without a model, and an invalid name of a hub repository."""
    folder = Path(name).expanduser()
    file = _own_file(folder, checkpoint)
    if folder.is_dir():
        _checkpoint_folder(folder, None if file else checkpoint)
    else:
        _check_repo_name(name)


def load(
    name: str,
    checkpoint: str | None,
    pretrained: bool,
    dtype: torch.dtype | None,
    placing: Mapping[str, Any] = MappingProxyType({}),
    values: Mapping[str, Any] = MappingProxyType({}),
) -> Source:
    """Load a model of transformers from a folder or a hub repository.

    `checkpoint` is a subfolder of a folder (``checkpoint-500``), a revision of a repository, or a file of weights.
    ``placing`` are options of ``from_pretrained`` that say where its weights go and how its attention runs; ``values``
    are those of the configuration.
    """
    with _errors_explained(f"hf:{name}"):
        return _load(name, checkpoint, pretrained, dtype, placing, values)


def _load(
    name: str,
    checkpoint: str | None,
    pretrained: bool,
    dtype: torch.dtype | None,
    placing: Mapping[str, Any],
    values: Mapping[str, Any],
) -> Source:
    AutoConfig = complete_module("transformers").AutoConfig

    folder = Path(name).expanduser()
    is_folder = folder.is_dir()
    options: dict[str, Any] = {"trust_remote_code": False}
    check(name, checkpoint)
    file = _own_file(folder, checkpoint)
    if is_folder:
        where = str(_checkpoint_folder(folder, None if file else checkpoint))
    else:
        where = name
        if checkpoint not in (None, RANDOM_WEIGHTS) and file is None:
            options["revision"] = checkpoint
    fetch = fetcher(f"hf:{name}", where, is_folder)
    config = fetch(lambda local: AutoConfig.from_pretrained(where, local_files_only=local, **options))
    for key, value in values.items():
        if not hasattr(config, key):
            raise InputError(f"hf:{name} has no {key} in its configuration; its values are in config.json")
        setattr(config, key, value)
    auto = _model_class(config)
    if pretrained and file is not None:
        module, report = _with_file(auto, config, file, dtype, placing)
        _check_complete(f"hf:{name}@{file}", report)
    elif pretrained:
        load = _pretrained_loader(auto, where, config, dtype, {**options, **placing})
        bound = bounded_by_weights(where, f"hf:{name}") if is_folder else contextlib.nullcontext()
        with seeded(), bound:  # a pooler that the weights leave out is drawn at random: always the same one
            module, report = fetch(load)
        _check_complete(f"hf:{name}", report)
    else:
        if not set(placing) <= {"attn_implementation"}:
            raise InputError(
                f"{', '.join(placing)} place weights as they are loaded; leave pretrained=False out, or them"
            )
        with seeded(), bounded_by_memory(f"hf:{name}"):
            build = getattr(auto, "from_config", None) or auto._from_config
            module = build(config, dtype=dtype or torch.float32, **placing)
        checkpoint = RANDOM_WEIGHTS

    def tokenizer() -> PreTrainedTokenizerBase:
        return read_tokenizer(fetch, f"hf:{name}", where, options)

    modality = _modality(module, config)
    if modality == "image":
        image = _format(fetch, where, config, options)
        return Source(module, config.model_type, modality, checkpoint, image)
    if modality == "image-text":

        def processor() -> Any:
            return _read_processor(fetch, f"hf:{name}", where, options)

        return Source(module, config.model_type, modality, checkpoint, load_processor=processor)
    if modality == "other":
        return Source(module, config.model_type, modality, checkpoint)
    limit = position_limit(module, config)
    return Source(module, config.model_type, "text", checkpoint, max_length=limit, load_tokenizer=tokenizer)


def _modality(module: nn.Module, config: Any) -> str:
    """``"image"``, ``"text"`` (of encoder–decoders too) or ``"image-text"``; ``"other"`` for sound and what else is."""
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        return "image-text"
    main = getattr(module, "main_input_name", "")
    if getattr(config, "is_encoder_decoder", False) and main != "input_ids":
        return "other"
    return {"pixel_values": "image", "input_ids": "text"}.get(main, "other")


def _own_file(folder: Path, checkpoint: str | None) -> Path | None:
    """Return the file of weights that a checkpoint names, in the folder or elsewhere; None for other checkpoints."""
    if checkpoint is None or Path(checkpoint).suffix not in WEIGHTS:
        return None
    inside, path = folder / checkpoint, Path(checkpoint).expanduser()
    path = inside if inside.is_file() else path
    require_file(path)
    return path


def _with_file(
    model_class: Any, config: Any, path: Path, dtype: torch.dtype | None, placing: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """Build a model of a configuration with the weights of a file."""
    build = getattr(model_class, "from_config", None) or model_class._from_config
    with torch.device("meta"), Unfilled():
        wanted = build(config).state_dict()
    state = fitting_state(read_state(path), wanted, path)
    with seeded(), _quiet_transformers():
        return model_class.from_pretrained(
            None, config=config, state_dict=state, dtype=dtype or "auto", output_loading_info=True, **placing
        )


def _checkpoint_folder(folder: Path, checkpoint: str | None) -> Path:
    chosen = folder if checkpoint in (None, RANDOM_WEIGHTS) else folder / str(checkpoint)
    if (chosen / "config.json").is_file():
        for file in chosen.glob("*"):
            if file.suffix in WEIGHTS:
                require_content(file)
        return chosen
    if not chosen.is_dir():
        raise UnknownName(
            f"checkpoint of {folder}", str(checkpoint), _model_folders(folder), "its subfolders"
        )
    if (chosen / "adapter_config.json").is_file():
        raise InputError(
            f"{chosen} holds an adapter of PEFT{_base_of(chosen)}, not a model: merge it where it was made, with "
            "peft.AutoPeftModel.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW), or hand the module of "
            "peft to workbench.wrap"
        )
    inside = _model_folders(chosen)
    hint = f"; its subfolders {', '.join(inside)} have one" if inside else ""
    raise InputError(
        f"{chosen} has no config.json{hint}. A Hugging Face folder holds config.json and model.safetensors, "
        "as model.save_pretrained(FOLDER) writes them"
    )


def _base_of(folder: Path) -> str:
    try:
        about = parsed((folder / "adapter_config.json").read_bytes())
    except (OSError, ValueError):
        return ""
    base = about.get("base_model_name_or_path") if isinstance(about, dict) else None
    return f" for {base}" if isinstance(base, str) else ""


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


def fetcher(what: str, where: str, is_folder: bool) -> Callable[[Callable[[bool], Any]], Any]:
    """A function that runs a loading step on the folder, or on the cache and then the hub."""

    def run(step: Callable[[bool], Any]) -> Any:
        with _errors_explained(what), _quiet_transformers():
            return step(True) if is_folder else hub.from_cache_or_hub(what, where, step)

    return run


@contextlib.contextmanager
def _errors_explained(what: str) -> Generator[None]:
    """Turn every error into an `InputError` of one line that names the model."""
    try:
        yield
    except WorkbenchError:
        raise
    except (SafetensorError, EOFError, UnicodeDecodeError) as error:
        raise InputError(
            f"{what}: a file of weights cannot be read ({error}); it may be truncated"
        ) from error
    # transformers believes what a config.json says, and fails where a number is a word in whatever way that ends
    except Exception as error:
        kinds = isinstance(error, TypeError | AttributeError)
        hint = "; a value in its config.json may be of another kind than its model takes" if kinds else ""
        raise InputError(f"{what} cannot be loaded: {in_our_words(error)}{hint}") from error


_PRETRAINING = re.compile(r"For(MaskedLM|PreTraining|MaskedImageModeling|NextSentencePrediction)$")


def _model_class(config: Any) -> Any:
    """Return the class that the configuration names, unless its head was for pre-training; else the nearest class."""
    import transformers

    for name in config.architectures or []:
        named = None if _PRETRAINING.search(name) else getattr(transformers, name, None)
        base = transformers.PreTrainedModel
        if isinstance(named, type) and issubclass(named, base) and named.config_class is type(config):
            return named
    return _auto_class(config)


def _auto_class(config: Any) -> Any:
    """The class with the head that gives logits for models that write, of whatever; without a head for others."""
    import transformers
    from transformers.models.auto import modeling_auto

    def of(mapping: str) -> bool:
        return config.model_type in getattr(modeling_auto, mapping)

    names = config.architectures or []
    if names:
        causal = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
    else:  # BERT can be run as a causal model too, so being able to is not enough
        causal = of("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES") and not of("MODEL_FOR_MASKED_LM_MAPPING_NAMES")
    if causal:
        return transformers.AutoModelForCausalLM
    if any(name.endswith("ForConditionalGeneration") for name in names):
        for mapping, auto in (
            ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "AutoModelForImageTextToText"),
            ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
            ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "AutoModelForSpeechSeq2Seq"),
        ):
            if of(mapping):
                return getattr(transformers, auto)
    return transformers.AutoModel


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
    if any("classifier" in name for name in report["missing_keys"]):
        warnings.warn(
            f"{what}: its weights lack the classifier, which is random: outputs mean nothing", stacklevel=3
        )
    absent = sorted(
        name for name in report["missing_keys"] if not re.search(r"pooler|lm_head|classifier", name)
    )
    if absent:
        raise InputError(
            f"{what}: its weights lack {len(absent)} tensors ({', '.join(absent[:3])}, …), which would be "
            "random; the folder's config.json and weights do not belong together"
        )


def position_limit(module: nn.Module, config: Any) -> int | None:
    """Longest sequence the model has positions for; None where positions are relative and unlimited."""
    for name, child in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(child, torch.nn.Embedding):
            # RoBERTa and its kin count positions from padding_idx + 1.
            used = 0 if child.padding_idx is None else child.padding_idx + 1
            return child.num_embeddings - used
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit and limit > 0 else None  # XLNet says -1


def read_tokenizer(fetch: Callable[..., Any], what: str, where: str, options: dict[str, Any]) -> Any:
    """The tokenizer beside the weights, padding and cutting on the right, with something to pad with."""
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
    ready_to_pad(tokenizer)
    return tokenizer


def _read_processor(fetch: Callable[..., Any], what: str, where: str, options: dict[str, Any]) -> Any:
    """The processor beside the weights, its tokenizer padding on the right, with something to pad with."""
    from transformers import AutoProcessor

    try:
        processor = fetch(
            lambda local: AutoProcessor.from_pretrained(where, local_files_only=local, **options)
        )
    except InputError as error:
        raise InputError(
            f"{what} has no processor of images and texts that can be read; save one beside the model with "
            f"processor.save_pretrained(FOLDER) ({error})"
        ) from error
    if not (hasattr(processor, "image_processor") and hasattr(processor, "tokenizer")):
        raise InputError(
            f"{what}: beside the weights lies a {type(processor).__name__}, and a processor has an image_processor and "
            "a tokenizer; save one with processor.save_pretrained(FOLDER)"
        )
    ready_to_pad(processor.tokenizer)
    return processor


def ready_to_pad(tokenizer: Any) -> None:
    """Let a tokenizer pad and cut on the right, with something to pad with."""
    tokenizer.padding_side = "right"
    tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        # GPT-2 and others were trained without padding. What stands in its place is masked, so any will do.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)


def _format(
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

    def preprocess(image: Image) -> Tensor:
        return processor(images=image, return_tensors="pt")["pixel_values"][0]

    if not getattr(processor, "do_normalize", False):
        return ImageFormat((height, width), channels, (0.0,) * channels, (1.0,) * channels, preprocess)
    mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    return ImageFormat((height, width), channels, mean, std, preprocess)


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
