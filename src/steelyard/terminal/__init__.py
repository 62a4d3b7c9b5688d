"""Terminal output: tables, verdicts and findings as text, and live progress."""
