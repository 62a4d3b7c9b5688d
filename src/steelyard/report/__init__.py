"""Turns analyses into reports, packs and audit pages. Measures nothing."""
