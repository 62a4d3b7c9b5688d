"""Results of other benchmarks: one module for each format, which turns the text of a file into printed figures."""
