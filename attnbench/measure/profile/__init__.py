"""Where one variant's time and memory go, by operator and by line of code."""
