"""BERT and its descendants, DistilBERT and ALBERT: a norm after each half of a block (transformers)."""

from workbench.captures.family import Block, Family

_MODELS = "transformers.models"
_BERT = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
    "camembert": "Camembert",
    "electra": "Electra",
}
_NORMS = Block(skip_path=("attention.output.LayerNorm", "output.LayerNorm"))
BERT = Family(
    blocks={
        **{f"{_MODELS}.{name}.modeling_{name}.{prefix}Layer": _NORMS for name, prefix in _BERT.items()},
        f"{_MODELS}.distilbert.modeling_distilbert.TransformerBlock": Block(
            skip_path=("sa_layer_norm", "output_layer_norm")
        ),
        f"{_MODELS}.albert.modeling_albert.AlbertLayer": Block(
            skip_path=("attention.LayerNorm", "full_layer_layer_norm")
        ),
    },
    # The last two widen small embeddings: ELECTRA's and ALBERT's.
    position_embeddings={
        "position_embeddings": ("LayerNorm", "embeddings_project", "embedding_hidden_mapping_in")
    },
)
