"""Progress on standard error while a study runs."""
