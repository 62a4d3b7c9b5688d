"""The command line: one module per verb, its options in `options/`."""
