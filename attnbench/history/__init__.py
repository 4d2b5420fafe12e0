"""Across commits: asv with this ruler behind it, and two commits against each other for CI."""
