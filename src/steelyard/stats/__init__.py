"""Steady state, intervals and ratios: pure functions on arrays."""
