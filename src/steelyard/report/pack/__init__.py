"""The allocation pack: the part of a proposal on performance and resources."""
