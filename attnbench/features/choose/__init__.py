"""choose."""
