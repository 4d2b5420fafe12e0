"""Which attention for this problem: from records, within limits, or an honest "can't say"."""
