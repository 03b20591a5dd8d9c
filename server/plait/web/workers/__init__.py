"""The processes of `plait serve --workers`: a parent, and workers that serve."""
