"""attnbench tells an engineer which attention to use, and proves it. This package is the ruler."""

__version__ = "0.1.0"
