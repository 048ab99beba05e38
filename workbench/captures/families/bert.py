"""BERT and its descendants, DistilBERT and ALBERT: a norm after each half of a block (transformers)."""

from workbench.captures.registry import register_positions, register_skip_path

_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
for _family, _name in {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
    "camembert": "Camembert",
    "electra": "Electra",
}.items():
    register_skip_path(f"transformers.models.{_family}.modeling_{_family}.{_name}Layer", *_NORMS)
register_skip_path(
    "transformers.models.distilbert.modeling_distilbert.TransformerBlock",
    "sa_layer_norm",
    "output_layer_norm",
)
register_skip_path(
    "transformers.models.albert.modeling_albert.AlbertLayer", "attention.LayerNorm", "full_layer_layer_norm"
)
# The last two widen small embeddings: ELECTRA's and ALBERT's.
register_positions("position_embeddings", "LayerNorm", "embeddings_project", "embedding_hidden_mapping_in")
