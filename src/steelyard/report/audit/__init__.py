"""The pages of an audit and of the built-in documents."""
