# Written by `python -m tests.stubs` from the signatures and the registry of analyses.
# fmt: off
"""Options of every analysis, as `workbench.analyze` takes them by name."""


from typing import Literal

from typing_extensions import TypedDict

class OfMatrices(TypedDict, total=False):
    method: Literal["auto", "dense", "tiled"]
    """matrices of tokens × tokens: dense forms all of it, in float64; tiled works tile by tile, in memory that grows
    with the tokens, with sums in float64; auto is dense up to 2^25 entries (attention maps: over the heads of an
    input; others: of one head), then tiled"""

class OfInputs(OfMatrices, total=False):
    per_input: bool
    """rows per input; false: means, or else mean, deviation, 95 % interval and quantiles over inputs, in memory that
    does not grow with them"""

class OfHeads(OfInputs, total=False):
    per_head: bool
    """one row per input, layer and head, in place of means and the null distribution of a mean"""

class OfValues(OfHeads, total=False):
    padding: Literal["mask", "keep"]
    """mask: only real tokens; keep: padding counts as tokens, as published"""
    null_samples: int
    """samples of the null distribution, at least 2; 0 leaves it out"""
    null: Literal["gaussian", "permutation", "rotation", "both", "all", "projection"] | str
    """null distribution: gaussian (values of the same shape and mean square), permutation (tokens of the values
    permuted), both of these, rotation (tokens of the values rotated at random about their mean), all three,
    projection (values of all heads projected at random: the same input, other weights), or a null of a plug-in"""

class AttentionMap(OfInputs, total=False, closed=True):
    """Entropy, reach and sinks of attention; head diversity, dead heads, non-finite values."""
    null: Literal["uniform", "permutation", "both"]
    """null distribution: uniform (uniform attention over the keys that a query may see), permutation (each query's
    weights permuted among these keys), or both, a row for each"""
    null_samples: int
    """samples of the null of permuted keys, which attention_diversity has, and with null=permutation also distance
    and sink; at least 2; 0 leaves it out"""

class AttentionMapPair(OfMatrices, total=False, closed=True):
    """The attention of every query to every key, per pair."""
    query: int | None
    """only this token as the query; none: all of them"""

class AttentionPatterns(OfInputs, total=False, closed=True):
    """Which simple pattern each head follows: previous, first or own token, induction, local, class, segment, even."""
    null: Literal["uniform", "permutation", "both"]
    """null distribution: uniform (uniform attention over the keys that a query may see), permutation (each query's
    weights permuted among these keys), or both, a row for each"""
    radius: float
    """reach of local attention, in tokens of a text and in patches of an image"""
    masks: Literal["ink"] | str | None
    """segments of images: a folder with one mask image per input, of its name, a colour or grey level each; ink
    (bright patches, for the bundled digits); or none"""
    needle: int | None
    """score retrieval in texts that end with a copy of an earlier passage, the needle, of at least as many tokens"""

class AttentionSpectrum(OfValues, total=False, closed=True):
    """Spectrum of attention and of the Primal kernel; r-scores, and the values beside the right singular vectors."""
    max_rank: Literal["all"] | int
    """how many singular values per head: a number or all"""
    laplacian: bool
    """also eigenvalues of the Laplacian of softmax attention, and its spectral gap; of whole matrices"""
    single: bool
    """beside the means also one row per input, layer and head, for intervals over inputs from the same run"""

class ClassAttention(OfHeads, total=False, closed=True):
    """Attention of the class token: on special tokens, entropy, head diversity, on a mask."""
    query: Literal["auto", "mean", "first", "last"]
    """whose attention: auto (the class token; in causal text models, which have none, the last token), mean (over all
    queries), first or last"""
    rollout: bool
    """also roll attention out through the layers up to each (all are then needed)"""
    tokens: bool
    """also a row for each token (rank), with the attention it receives"""
    masks: Literal["ink"] | str | None
    """foreground to compare with (what is not black): a folder with one mask image per input, of its name; ink
    (bright patches, for the bundled digits); or none"""
    null: Literal["uniform", "permutation", "both"]
    """null distribution: uniform (uniform attention over the keys that a query may see), permutation (each query's
    weights permuted among these keys), or both, a row for each"""
    null_samples: int
    """samples of the null of permuted keys, at least 2; 0 leaves out both nulls"""
    single: bool
    """beside the means also one row per input, layer and head, for intervals over inputs from the same run"""

class ClassAttentionToken(OfMatrices, total=False, closed=True):
    """Attention of the class token, token by token, per token."""
    query: Literal["auto", "mean", "first", "last"]
    """whose attention: auto (the class token; in causal text models, which have none, the last token), mean (over all
    queries), first or last"""
    rollout: bool
    """also roll attention out through the layers up to each (all are then needed)"""

class CodingRate(OfInputs, total=False, closed=True):
    """Coding rates of the tokens before and after attention."""
    eps: float | None
    """distortion ε of the rates, in the unit of the tokens; none: d/ε² = 1 with d the width of a token, as the
    trained projections have absorbed it"""
    membership: Literal["layer", "uniform"]
    """layer: as the layer itself groups its tokens (softmax: ours, from its value projections); uniform: every token
    equally in all heads"""
    normalize: Literal["layer", "none"]
    """layer: streams pass through the norm before the layer's attention, so that they compare with its input; none:
    as they are"""

class EigenvectorTest(OfValues, total=False, closed=True):
    """Are the values made of eigenvectors of the centred Gram matrix."""
    precision: Literal["float64", "float32"]
    """float64, or float32 as published: what rounding alone does to γ"""
    noise: float
    """standard deviation of the noise added to the perturbed eigenvectors"""
    standardize: Literal["none", "per-token", "per-feature"]
    """standardize the keys before anything else: none, per-token (over features, as published) or per-feature (over
    tokens)"""

class FilterKernels(OfHeads, total=False, closed=True):
    """Attention beside fitted Gaussian, non-local-means and bilateral kernels."""
    content: Literal["tokens", "heads", "both"]
    """what contents are: tokens (of the attention's input, the paper's W = I), heads (queries and keys, its W =
    W_QᵀW_K) or both"""
    method: Literal["auto", "dense"]  # ty: ignore[invalid-typed-dict-field]
    """matrices of tokens × tokens are formed whole"""
    null_samples: int
    """samples of the null distribution, the kernel's tokens permuted, at least 2; 0 leaves it out"""
    single: bool
    """beside the means also one row per input, layer and head, for intervals over inputs from the same run"""

class GramSpectrum(OfInputs, total=False, closed=True):
    """Spectrum of the centred Gram matrix of the keys."""
    max_rank: Literal["head_dim", "all"] | int
    """how many eigenvalues per head: a number, head_dim (as the papers' tables) or all"""
    standardize: Literal["none", "per-token", "per-feature"]
    """standardize the keys before anything else: none, per-token (over features, as published) or per-feature (over
    tokens)"""
    normalize: Literal["none", "trace"]
    """none: eigenvalues; trace: each one's share of their sum, which no key scale makes underflow"""
    null_samples: int
    """samples of the null distribution, Gaussian keys of the same shape and mean square, at least 2; each costs as
    much as the spectrum itself; 0 leaves it out"""

class HeadEffect(OfInputs, total=False, closed=True):
    """What the model predicts without each head: loss, divergence, logit difference, accuracy."""
    mode: Literal["zero", "mean", "uniform", "resample"]
    """output that replaces the head's: zero; mean (over the tokens of the input); uniform (of uniform attention to
    the keys that a query may see); resample (its outputs at the other tokens of the input, permuted)"""
    together: bool
    """switch the chosen heads of a layer off together (see the setting heads), beside random sets of as many heads of
    the layer"""
    null_samples: int
    """random directions or sets of heads, each of which is another pass of the model, at least 2; 0 leaves the null
    out"""

class LogitAttribution(OfInputs, total=False, closed=True):
    """Which part moves the logit: direct contributions of heads, MLPs and embeddings."""
    target: Literal["predicted", "right"] | str
    """predicted (the largest logit), right (the class of the image, the next token of the text), or a logit
    difference by name, as Mary/John (of texts at the last token)"""
    null_samples: int
    """random outcomes in place of the target, at least 2; 0 leaves the null out"""

class LogitAttributionPair(OfMatrices, total=False, closed=True):
    """Which link moves the logit: direct contributions of attention from key to query, per pair."""
    target: Literal["predicted", "right"] | str
    """predicted (the largest logit), right (the class of the image, the next token of the text), or a logit
    difference by name, as Mary/John (of texts at the last token)"""
    query: int | None
    """only this token as the query; none: all of them"""

class LogitLens(OfInputs, total=False, closed=True):
    """What the model would predict after each layer."""
    null_samples: int
    """samples of the null, streams of random other tokens of the input, at least 2; 0 leaves it out"""

class Membership(OfHeads, total=False, closed=True):
    """Tokens as members of heads: how evenly, and along which segments."""
    masks: Literal["ink"] | str | None
    """segmentation to compare with: a folder with one mask image per input, of its name; ink (bright patches, for the
    bundled digits); or none"""
    null_samples: int
    """samples of the null distribution, patches of the mask permuted, at least 2; 0 leaves it out"""
    per_head: bool
    """one row per input and layer, with the share of every head, in place of means and the null distribution of a
    mean"""
    single: bool
    """beside the means also one row per input, layer and head, for intervals over inputs from the same run"""

class MembershipToken(OfMatrices, total=False, closed=True):
    """Membership of every token in every head, per token."""
    convention: Literal["as_published", "as_implemented"] | None
    """of token statistics attention: as_published (wu2025 eq. 10) or as_implemented (as ToST is trained); none: what
    each layer computes itself"""

class PatchPca(OfInputs, total=False, closed=True):
    """Principal components of patches in one basis, their variance, and the first one as a mask."""
    site: Literal["resid_pre", "resid_mid", "resid_post", "q", "k", "v"]
    """tokens: of the residual stream, or queries, keys or values of all heads side by side"""
    components: int
    """number of components"""
    masks: Literal["ink"] | str | None
    """foreground to compare with (what is not black): a folder with one mask image per input, of its name; ink
    (bright patches, for the bundled digits); or none"""
    mass: float
    """share of the first component's positive part that the patches of its mask hold"""
    null_samples: int
    """null samples, at least 2, each of the tokens another decomposition; 0 leaves them out"""

class PatchPcaToken(OfMatrices, total=False, closed=True):
    """Principal components of patches, patch by patch, per token."""
    site: Literal["resid_pre", "resid_mid", "resid_post", "q", "k", "v"]
    """tokens: of the residual stream, or queries, keys or values of all heads side by side"""
    components: int
    """number of components"""

class Patching(OfInputs, total=False, closed=True):
    """Which head carries the difference of two inputs: activation patching of pairs, and attribution patching."""
    target: Literal["predicted", "right"] | str
    """the outcomes of a pair: predicted (the largest logit of each input; of texts at the last token), right (the
    class of each image; the last token of each text, predicted from the one before), or two by name, as Mary/John (of
    texts at the last token)"""
    direction: Literal["both", "denoising", "noising"]
    """denoising (the corrupted input with heads of the clean one), noising (the reverse), or the mean of both"""
    null: Literal["isotropic", "others"]
    """null distribution: isotropic (the head's outputs moved as far in a random direction) or others (the head's
    outputs for inputs of the next pairs of the batch with as many tokens)"""
    null_samples: int
    """null samples per head, each of which is another pass of the model, at least 2; 0 leaves the null out"""

class PatchingToken(OfMatrices, total=False, closed=True):
    """Activation patching, token by token, per token."""
    target: Literal["predicted", "right"] | str
    """the outcomes of a pair: predicted (the largest logit of each input; of texts at the last token), right (the
    class of each image; the last token of each text, predicted from the one before), or two by name, as Mary/John (of
    texts at the last token)"""

class PositionLogits(OfHeads, total=False, closed=True):
    """Attention logits split by content and position."""
    method: Literal["auto", "dense"]  # ty: ignore[invalid-typed-dict-field]
    """matrices of tokens × tokens are formed whole"""
    null_samples: int
    """samples of the null distribution of the cross terms, positions shuffled over tokens, at least 2; 0 leaves it
    out"""
    single: bool
    """beside the means also one row per input, layer and head, for intervals over inputs from the same run"""

class PositionLogitsPair(OfMatrices, total=False, closed=True):
    """Attention logits and their parts, for every query and key, per pair."""
    max_tokens: int
    """how many tokens of each input, from its first"""

class ProjectionError(OfValues, total=False, closed=True):
    """Do head outputs project the queries on the principal axes."""
    convention: Literal["teo2024_as_published", "teo2024_as_implemented", "saritas2025", "exact", "all"]
    """teo2024_as_published, teo2024_as_implemented, saritas2025, exact or all"""
    standardize: Literal["none", "per-token"]
    """none, or per-token: q and k over features, and attention from them (teo2024_as_implemented always does)"""

class QkOvCircuits(OfMatrices, total=False, closed=True):
    """What the weights of heads do: spectra of W_QK and W_OV, copying, and composition between heads."""
    null_samples: int
    """samples of the null distribution, Gaussian matrices, at least 2; 0 leaves it out"""

class Relevance(OfInputs, total=False, closed=True):
    """Which tokens a prediction rests on: maps from attention and its gradient, with deletion and insertion."""
    target: Literal["predicted", "right"]
    """outcome that the maps explain: predicted (the largest logit; of texts at the last token) or right (the class of
    the image; the last token of the text, predicted from the one before)"""
    path_steps: int
    """points on the path from uniform attention, each of which is another pass"""
    removal_steps: int
    """numbers of removed tokens between none and all, each of which is another pass for every map"""
    null_samples: int
    """random orders of the tokens, at least 2; 0 leaves the null out"""

class RelevanceToken(OfMatrices, total=False, closed=True):
    """Relevance of every token, by map, per token."""
    target: Literal["predicted", "right"]
    """outcome that the maps explain: predicted (the largest logit; of texts at the last token) or right (the class of
    the image; the last token of the text, predicted from the one before)"""
    path_steps: int
    """points on the path from uniform attention, each of which is another pass"""

class RobustComponents(OfHeads, total=False, closed=True):
    """What RPC-Attention splits off its keys: how sparse, how much, and whether the parts add up."""

class Saturation(OfInputs, total=False, closed=True):
    """How far attention is from its limits: the largest logit, and closed gates."""
    closed: float
    """value of a gate below which it is closed"""
    null_samples: int
    """samples of the largest of Gaussian logits, at least 2; 0 leaves them out"""

class Sinks(OfInputs, total=False, closed=True):
    """Attention sinks: how many heads have one, the values there, massive activations."""
    epsilon: float
    """share of attention on one key above which a head has a sink"""
    null_samples: int
    """Gaussian samples beside massive activations, at least 2; 0 leaves them out"""

class Snr(OfInputs, total=False, closed=True):
    """Signal and noise before and after attention: does the residual connection raise their ratio."""
    noise: str
    """noise of the images: gaussian-noise, impulse-noise (salt and pepper), defocus-blur, or another of the
    corruptions"""
    severity: int
    """how strongly, from 1 to 5"""
    centre: bool
    """take the mean of the tokens off the signal: the paper subtracts what tokens collapse to, where that is not
    zero"""
    per_head: bool
    """one row per input and layer, in place of means"""

class SoftmaxSensitivity(OfHeads, total=False, closed=True):
    """Change of a model's softmax when its logits change: local Lipschitz constants, and noise."""
    sigma: float
    """standard deviation of the noise that is added to the logits"""
    null_samples: int
    """samples of the null distribution, random q and k of the same size, at least 2; 0 leaves it out"""
    single: bool
    """beside the means also one row per input, layer and head, for intervals over inputs from the same run"""

class Subspaces(OfMatrices, total=False, closed=True):
    """Subspaces that the heads read: coherence and angles, from the weights."""
    projection: Literal["v", "q", "k"]
    """whose directions: those of the projection to v, q or k (for all, if there is only one, as in TSSA)"""
    null_samples: int
    """samples of the null distribution, random directions, at least 2; 0 leaves it out"""

class SubspacesPair(OfMatrices, total=False, closed=True):
    """|cos| of every two directions that the heads read, per pair."""
    projection: Literal["v", "q", "k"]
    """whose directions: those of the projection to v, q or k (for all, if there is only one, as in TSSA)"""
    directions: int | None
    """directions of each head, picked at random as in the paper; none: all"""

class TokenSimilarity(OfInputs, total=False, closed=True):
    """Mean cosine similarity of tokens through depth."""
    null: Literal["gaussian", "permutation"]
    """null distribution: gaussian (random directions, exact) or permutation (features shuffled over tokens)"""
    null_samples: int
    """samples of the permutation null, at least 2; 0 leaves out the null distribution"""
    sites: Literal["resid_post", "input", "resid_mid", "all"]
    """where: resid_post (after the block), input (of the attention), resid_mid (between attention and MLP), or all
    three"""
    special_tokens: Literal["keep", "remove", "both"]
    """special tokens (class, distillation, register): keep, remove or both"""
    mean_token: Literal["keep", "remove", "both"]
    """the mean of an input's tokens: keep, remove (from every token) or both"""
    effective_rank: bool
    """also the effective rank of the tokens, from singular values"""
    rate: Literal["none", "fit"]
    """fit: also the oversmoothing rate r per layer, 1 − cos = δ exp(−r layer), by least squares on logarithms; or
    none"""

class ValueOutput(OfInputs, total=False, closed=True):
    """What heads write: the norm of attention × value × output projection, and the share of the most attended key."""
    null: Literal["uniform", "permutation", "both"]
    """null distribution: uniform (uniform attention over the keys that a query may see), permutation (each query's
    weights permuted among these keys), or both, a row for each"""
    null_samples: int
    """samples of the null of permuted keys, at least 2; 0 leaves it out"""

class ValueOutputToken(OfMatrices, total=False, closed=True):
    """Norm of what heads write, per token."""

class ValueOutputPair(OfMatrices, total=False, closed=True):
    """Norm of what heads write, per pair."""
    query: int | None
    """only this token as the query; none: all of them"""

class ValueSimilarity(OfValues, total=False, closed=True):
    """Similarity of the values V with the kernel-PCA values V̇."""
    axis: Literal["tokens", "features", "both"]
    """features: compare columns of V and V̇ (as the text has it); tokens: rows (as its code); both"""
    statistic: Literal["max", "mean", "both"]
    """over the matched pairs: max, mean or both"""
    standardize: Literal["none", "per-token", "per-feature"]
    """standardize the keys before anything else: none, per-token (over features, as published) or per-feature (over
    tokens)"""
