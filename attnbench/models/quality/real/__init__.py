"""``quality real``: errors on what a trained model's layers hand to attention."""
