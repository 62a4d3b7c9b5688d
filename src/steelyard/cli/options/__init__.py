"""The options of each verb, apart from what the verb does: help and option errors need none of its libraries."""
