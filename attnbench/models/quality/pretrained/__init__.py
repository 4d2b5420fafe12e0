"""``quality model``: a model that was trained, its attention replaced by each variant."""
