"""Turns analyses into what people look at. Measures nothing."""
