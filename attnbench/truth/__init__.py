"""Is it right? Asked of the shape that is timed, on the device and in the dtype that are timed."""
