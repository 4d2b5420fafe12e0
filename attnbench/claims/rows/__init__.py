"""The claims, a file for each source: data alone."""
