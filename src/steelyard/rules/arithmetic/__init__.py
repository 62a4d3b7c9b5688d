"""SY5xx: figures, clocks and units that contradict each other."""
