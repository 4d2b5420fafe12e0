"""The forms of an answer that people read."""
