"""SY2xx: number of jobs, steady state, confidence intervals, drift."""
