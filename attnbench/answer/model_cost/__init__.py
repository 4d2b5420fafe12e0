"""What a variant costs a model: intervals, ranks, and who is fastest at the same quality."""
