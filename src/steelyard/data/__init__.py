"""Data sets in their published formats: read, checked and made small. Uses numpy and Pillow; never unpickles."""
