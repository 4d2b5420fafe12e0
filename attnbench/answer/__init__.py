"""From records to verdicts."""
