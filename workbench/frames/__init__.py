"""Tidy result frames: columns, measurements, provenance, files and tables."""
