from .attention import attention_heatmap_figure as attention_heatmap_figure
from .attention import attention_summary_figure as attention_summary_figure
from .plates import plate as plate
from .similarity import similarity_depth_figure as similarity_depth_figure
from .spectra import spectrum_figure as spectrum_figure
from .theme import apply_theme as apply_theme
