"""One analysis over a model and its inputs: at once, over many shards, or while a model trains."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "result_findings": ["counts_finding", "mean_finding", "null_finding", "range_finding"],
        "many": ["example"],
        "settings": ["model_pairs"],
        "sweep.status": ["sweep_status"],
    },
)
