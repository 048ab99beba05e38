"""What only the papers' tables need: training, evaluation, the cost of operators, and the records of all three.

No other room imports this one; the rest of the library works with the folder removed.
"""

import lazy_loader

# Reading a record must not cost the import of torch.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "baselines": ["versus_baseline"],
        "claims": ["claims_from_records", "recorded_claims"],
        "claims_measured": ["measured_claims"],
        "evaluation": ["evaluate"],
        "records": ["claims_record", "evaluation_record", "scaling_record", "training_record"],
        "scaling": ["scaling_study"],
        "training": ["train"],
    },
)
