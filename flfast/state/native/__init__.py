"""Our C++: products of few rows on one core, the tape executor, and rounding for compression."""
