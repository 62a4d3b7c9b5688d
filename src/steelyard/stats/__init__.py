"""Statistics: steady state, confidence intervals, ratios, energy. Pure functions on arrays."""
