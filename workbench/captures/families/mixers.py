"""Modules that mix tokens without a softmax over them: layers of kind "none", named and not read.

Recurrences, state-space models and linear attention are functions of the past that have no map of weights over tokens
(Katharopoulos et al. 2020, Gu and Dao 2023, Yang et al. 2024); deformable attention weighs values sampled between
tokens (Zhu et al. 2021). Approximations of softmax attention have weights, and no single map of them.
"""

from workbench.captures.family import Family

_KINDS = {
    "state-space mixer": (
        "*MambaMixer", "*Mamba2Mixer", "*BambaMixer", "*FalconH1Mixer", "*MambaLayer",
        "timm.models.efficientvim.HSMSSD", "mamba_ssm.modules.mamba_simple.Mamba", "mamba_ssm.modules.mamba2.Mamba2",
    ),
    "gated delta rule": ("*DeltaNet", "*DeltaAttention"),
    "linear attention": ("*LinearAttention", "*LightningAttention", "*LinearSelfAttention", "*LiteMLA"),
    "linear attention with decay": ("*RwkvSelfAttention",),
    "gated linear recurrence": ("*RecurrentBlock",),
    "short convolution": ("*ShortConv", "*RepMixer"),
    "Fourier transform of the tokens": ("*FNetFourierTransform",),
    "deformable attention, values sampled at learned places": ("*DeformableAttention",),
    "attention within buckets of hashes": ("transformers.models.reformer.modeling_reformer.LSHSelfAttention",),
    "attention within chunks, exponentials in place of a softmax": (
        "transformers.models.reformer.modeling_reformer.LocalSelfAttention",
    ),
    "attention sampled by hashes": ("transformers.models.yoso.modeling_yoso.YosoSelfAttention",),
    "Nyström approximation of attention": (
        "transformers.models.nystromformer.modeling_nystromformer.NystromformerSelfAttention",
    ),
    "approximation of attention in several resolutions": (
        "transformers.models.mra.modeling_mra.MraSelfAttention",
    ),
    "attention of only the most informative queries": (
        "transformers.models.informer.modeling_informer.InformerProbSparseAttention",
    ),
    "autocorrelation of the series": ("transformers.models.autoformer.modeling_autoformer.AutoformerAttention",),
    "sparse attention in blocks, some of them random": (
        "transformers.models.big_bird.modeling_big_bird.BigBirdBlockSparseAttention",
        "transformers.models.bigbird_pegasus.modeling_bigbird_pegasus.BigBirdPegasusBlockSparseAttention",
    ),
    "lambda layer, linear attention within a neighbourhood": ("timm.layers.lambda_layer.LambdaLayer",),
    "global context, one pooling for all places": ("timm.layers.global_context.GlobalContext",),
    "outlook attention, weights of a projection": ("timm.models.volo.OutlookAttention",),
    "additive attention of a recurrent cell": ("*AttentionGRUCell",),
    "assignment of tokens to groups, a softmax over the groups": (
        "transformers.models.groupvit.modeling_groupvit.GroupViTAssignAttention",
    ),
    "pooling of the tokens, weights of a convolution": (
        "transformers.models.mgp_str.modeling_mgp_str.MgpstrA3Module",
    ),
    "attention over the depth of the residual stream": (
        "transformers.models.inkling2.modeling_inkling2.Inkling2BlockAttentionResidual",
    ),
    "factorised attention": ("timm.models.coat.FactorAttnConvRelPosEnc",),
}  # fmt: skip
MIXERS = Family(mixers={path: noun for noun, paths in _KINDS.items() for path in paths})
