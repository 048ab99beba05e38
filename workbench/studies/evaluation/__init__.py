"""How well a model does: on clean, attacked, corrupted and out-of-distribution inputs, and with words swapped."""

import lazy_loader

# The command's help must not cost the import of torch.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "evaluating": ["evaluate"],
        "protocols": ["PROTOCOLS"],
    },
)
