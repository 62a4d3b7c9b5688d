"""Measurement: phases, step timing, samples and environment. Writes down; derives nothing."""
