"""What the reference promises of a function of tensors: a meaning, the shapes, and the source where it is a paper's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import workbench
from workbench.papers.published import PAPERS

PACKAGE = Path(workbench.__file__).parent
OWN = {  # tools of our own: they have shapes and a meaning, and no paper
    "analyses/attention_matrix", "analyses/layer", "analyses/linalg", "analyses/links", "analyses/null_values",
    "analyses/pairs", "analyses/reductions", "analyses/registry", "analyses/patch_segments", "analyses/tiles",
    "attention/__init__", "attention/base", "attention/position_embeddings", "attention/recognition",
    "attention/replacing", "core/operands",
}  # fmt: skip
OWN_FUNCTIONS = {
    "attention_map": {
        "attention_report", "head_output_norm", "permuted_heads", "rows_of_maps",
    },
    "class_attention": {
        "class_queries", "class_rows", "concentration", "is_causal", "mask_share", "query_attention",
    },
    "filter_kernels": {"squared_distances"},
    "gram_spectrum": {"check_psd_eigenvalues"},
    "head_effect": {"need_next_tokens", "random_directions", "real_outputs"},
    "membership": {"own_convention"},
    "patch_pca": {"mask_iou"},
    "patching": {"logits_at"},
    "position_logits": {"shuffled_orders", "terms_of_layer", "within_rows"},
    "primal": {"primal_layers"},
    "relevance": {"relevance_maps", "removal_orders"},
    "robust_components": {
        "contamination_scores", "found_contamination", "marked_share", "patches_of", "split_of_layer",
    },
    "token_similarity": {"isotropic_null", "permuted_null", "sites_of"},
    "value_similarity": {"chosen_quantities"},
}  # fmt: skip
# What `analyze` calls; sources stand beside their metrics.
RUN = {"across", "findings", "measure", "notes", "pair_rows", "perturb", "token_findings", "token_rows"}
ANY_SHAPE = {  # of `workbench.core.operands`: they check shapes, whatever they are
    "check_axes", "check_finite", "check_mask", "check_scale", "nonfinite_count",
}  # fmt: skip
SOURCE = re.compile("|".join([*PAPERS, r"\(?(19|20)\d\d\)?[;:,.) ]"]))
MODULES = sorted(
    [
        *(PACKAGE / "analyses").glob("*.py"),
        *(PACKAGE / "attention").glob("*.py"),
        PACKAGE / "core" / "operands.py",
    ]
)


def _functions(path: Path) -> list[ast.FunctionDef]:
    """The public functions of a module, without the signatures that only tell a type checker more."""
    return [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and "overload" not in {ast.unparse(decorator) for decorator in node.decorator_list}
    ]


FUNCTIONS = [(path, function) for path in MODULES for function in _functions(path)]


def _name(value):
    return f"{value.parent.name}/{value.stem}" if isinstance(value, Path) else value.name


@pytest.mark.parametrize(
    ("path", "function"), [pair for pair in FUNCTIONS if pair[1].name not in ANY_SHAPE], ids=_name
)
def test_a_tensor_has_its_shape_in_the_signature_or_docstring(path, function):
    docstring = ast.get_docstring(function) or ""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    untold = [
        each.arg
        for each in arguments
        if each.annotation is not None
        and _bare(ast.unparse(each.annotation))
        and not re.search(rf"``{each.arg}``|\b{each.arg} \(", docstring)
    ]
    assert untold == []
    returned = "" if function.returns is None else ast.unparse(function.returns)
    assert not _bare(returned) or re.search(r"\([\w*, …]+\)|shape", docstring), returned


def _bare(annotation: str) -> bool:
    """Whether a tensor stands in an annotation without its axes; a number that may be one per head has none."""
    shaped = re.sub(r"\w+\[Tensor, [^\]]+\]", "", annotation)
    return re.search(r"\bTensor\b", shaped) is not None and not re.search(r"\bfloat \| Tensor", shaped)


OF_PAPERS = [
    (path, function)
    for path, function in FUNCTIONS
    if _name(path) not in OWN and function.name not in OWN_FUNCTIONS.get(path.stem, set()) | RUN
]


@pytest.mark.parametrize(("path", "function"), OF_PAPERS, ids=_name)
def test_what_is_a_paper_s_names_it_itself(path, function):
    assert SOURCE.search(ast.get_docstring(function) or "")


def test_what_is_our_own_is_there_and_names_no_paper():
    assert {_name(path) for path in MODULES} >= OWN
    functions = {
        (path.stem, function.name): ast.get_docstring(function) or "" for path, function in FUNCTIONS
    }
    for module, names in OWN_FUNCTIONS.items():
        assert {name for name in names if SOURCE.search(functions[module, name])} == set()
