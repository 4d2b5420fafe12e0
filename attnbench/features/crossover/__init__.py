"""crossover."""
