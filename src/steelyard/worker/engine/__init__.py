"""The engine: drives ranks through phases and blocks until the budget says stop."""
