"""How the cost of attention operators grows with tokens and features: sweeps, the study, fitted exponents."""

import lazy_loader

# The command's help must not cost the import of torch.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "study": ["scaling_study"],
        "fits": [
            "cost_ratios",
            "fitted_sizes",
            "measured_on",
            "power_findings",
            "printed_exponents",
            "ratio_findings",
            "scaling_exponents",
            "scaling_findings",
            "times_beside",
        ],
    },
)
