"""Live progress on standard error while a study runs."""
