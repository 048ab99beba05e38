"""Many models over thousands of inputs, in shards, on the cores of one machine or of a cluster."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "reading": ["read_sweep"],
        "running": ["parse_duration", "sweep"],
        "status": ["SweepStatus", "sweep_status"],
    },
)
