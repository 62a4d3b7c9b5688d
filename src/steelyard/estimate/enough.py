"""How much measuring is enough, for readers of results as well as for the loop that stops a run."""

STEPS_TO_JUDGE = 28
"""Least number of steps of a useful run: 20 to judge the steady state, and 8 slow first ones (stats/steady.py)."""
STEPS_OF_COVERAGE = 900
"""From this many steps the coverage of an interval within one job was verified: 93.4 to 95.8 % over 2,000 jobs of each
kind of noise. A run measures 1,000, so that a few slow first steps may be cut off. With fewer steps, AR(1) 0.8 has too
little information."""
MIN_OCCASIONS = 8
"""Least number of occasions of a history for their own scatter to be used; with fewer it is the scatter of the jobs."""
