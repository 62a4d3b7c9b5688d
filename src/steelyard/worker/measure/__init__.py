"""Measurement: phases, step timing, samples and environment, written without analysis."""
