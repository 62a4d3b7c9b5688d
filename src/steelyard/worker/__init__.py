"""The measured side: Python 3.10 with the standard library, numpy and the installed torch. Writes raw observations."""
