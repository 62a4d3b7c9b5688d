"""What people see in a terminal: tables, verdicts and findings as text. Computes nothing."""
