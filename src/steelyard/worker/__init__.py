"""The measured side: standard library, numpy and the torch that is there; Python 3.10. Derives nothing."""
