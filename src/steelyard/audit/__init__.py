"""Published tables and claims: read from strangers, judged by the same rules as our own records."""
