"""Check the arithmetic on simulated accelerators, every formula against a known truth; and check this node."""
