"""From one captured layer to the rows of a result: what each analysis measures there.

The functions in ``workbench.analyses`` know tensors; these know which tokens are padding, where the patches
lie, which windows belong to one input, and which layers a measure does not apply to.
"""

from workbench.frames.measurement import Counts, Measurement
from workbench.measurements.class_attention import class_attention
from workbench.measurements.coding_rates import coding_rates
from workbench.measurements.eigenvectors import eigenvectors_of_values
from workbench.measurements.filter_kernels import filter_kernels
from workbench.measurements.kernel_svd import attention_spectrum
from workbench.measurements.layers import Layer, NotApplicable
from workbench.measurements.maps import attention_map
from workbench.measurements.membership import membership_of_tokens
from workbench.measurements.position_logits import position_logits
from workbench.measurements.projections import errors_of_projection
from workbench.measurements.robust_components import robust_components
from workbench.measurements.signal_noise import noisy_inputs, signal_and_noise
from workbench.measurements.similarity import rates_of_similarity, sites_of_similarity, token_similarity
from workbench.measurements.softmax_sensitivity import softmax_sensitivity
from workbench.measurements.spectra import gram_spectrum, profile_of_spectra
from workbench.measurements.subspaces import subspaces_of_heads
from workbench.measurements.values import similarity_of_values

__all__ = [
    "Layer",
    "Measurement",
    "NotApplicable",
    "Counts",
    "attention_map",
    "attention_spectrum",
    "class_attention",
    "coding_rates",
    "eigenvectors_of_values",
    "errors_of_projection",
    "filter_kernels",
    "gram_spectrum",
    "membership_of_tokens",
    "noisy_inputs",
    "position_logits",
    "profile_of_spectra",
    "rates_of_similarity",
    "robust_components",
    "signal_and_noise",
    "similarity_of_values",
    "sites_of_similarity",
    "softmax_sensitivity",
    "subspaces_of_heads",
    "token_similarity",
]
