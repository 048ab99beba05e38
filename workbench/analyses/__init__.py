"""Pure functions of tensors: what a paper measures on queries, keys, values, attention and hidden states.

Tensors are (*batch, head, token, head_dim); attention is (*batch, head, query, key); hidden states are
(*batch, token, width). Everything is computed in float64; exponentials and their sums in the log domain.
"""
