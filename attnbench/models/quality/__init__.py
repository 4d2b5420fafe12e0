"""What a variant costs a model: how well a model still does its work with it, and how fast."""
