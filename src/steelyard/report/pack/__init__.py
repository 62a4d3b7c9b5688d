"""The allocation pack: the performance and resources section of a proposal."""
