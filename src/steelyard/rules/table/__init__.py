"""Rows of figures and their settings, shared by the pair, table and claim rules."""
