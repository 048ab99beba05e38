"""The papers' attention mechanisms: one paper, one file, free functions first, the module beneath.

The one table of variants is ``VARIANTS``; ``attention_module`` builds any of them by name.
"""

from workbench.attention.base import AttentionModule, merge_heads, split_heads

__all__ = ["AttentionModule", "merge_heads", "split_heads"]
