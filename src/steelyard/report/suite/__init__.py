"""The report of a suite: a document's own tables with the figures of this machine beside them."""
