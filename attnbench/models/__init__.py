"""In a model: the variants called by name, calls captured, a call dispatched by a table."""
