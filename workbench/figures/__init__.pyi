from .attention import attention_heatmap_figure as attention_heatmap_figure
from .attention import attention_summary_figure as attention_summary_figure
from .notes import note_figure as note_figure
from .notes import with_absent as with_absent
from .plates import plate as plate
from .similarity import similarity_depth_figure as similarity_depth_figure
from .spectra import spectrum_figure as spectrum_figure
from .theme import apply_theme as apply_theme
