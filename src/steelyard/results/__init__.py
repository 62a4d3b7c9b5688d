"""The result folder: raw observations in, records out, written once and never changed."""
