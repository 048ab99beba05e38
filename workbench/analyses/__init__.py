"""The analyses, a file for each: what a paper measures on queries, keys, values, attention and hidden states.

A file has the question, the options and metrics, pure functions of tensors, `measure`, which yields what one captured
layer gives (`workbench.analyses.layer`), and ``ANALYSIS``, the entry that `workbench.analyses.registry` lists.

Tensors are (*batch, head, token, head_dim); attention is (*batch, head, query, key); hidden states are
(*batch, token, width). Everything is computed in float64; exponentials and their sums in the log domain.
"""
