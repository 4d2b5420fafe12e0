"""Getting through a grid: what to measure, who measures it, and how far it has come."""
