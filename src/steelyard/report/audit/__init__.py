"""Pages for audits and for the built-in documents."""
