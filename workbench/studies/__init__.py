"""Training, evaluation, operator costs and their records, which only the papers' tables need.

No other room imports this one; the rest of the library works with the folder removed.
"""

import lazy_loader

# Reading a record must not cost the import of torch.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "baselines": ["versus_baseline"],
        "claims_measured": ["measured_claims"],
        "evaluation": ["evaluate"],
        "record_claims": ["claims_from_records", "recorded_claims"],
        "records": ["claims_record", "evaluation_record", "scaling_record", "training_record"],
        "scaling": ["scaling_study"],
        "training": ["train"],
    },
)
