"""Our C++: kernels for products of few rows on one core, and the tape executor."""
