"""Multi-head latent attention: keys and values are projected from one latent of each token (DeepSeek-AI 2024)."""

from workbench.captures.registry import register_inner_site

register_inner_site("kv_b_proj", "kv_latent")
register_inner_site("q_b_proj", "q_latent")
