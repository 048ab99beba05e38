"""Figures to files: data, page, table and provenance at once; PDF, SVG and PNG through one warm Chrome."""

from workbench.figures.export.combining import combine
from workbench.figures.export.saving import FORMATS, check_figure, check_formats, export_job, save_figure
from workbench.figures.export.static import (
    STATIC,
    ExportFault,
    ExportJob,
    ExportResult,
    WarmChrome,
    export_static,
)

__all__ = [
    "save_figure",
    "check_figure",
    "combine",
    "export_static",
    "WarmChrome",
    "ExportJob",
    "ExportResult",
    "ExportFault",
    "export_job",
    "check_formats",
    "FORMATS",
    "STATIC",
]
