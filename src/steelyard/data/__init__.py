"""Data sets in their true formats: read, checked and made small. Knows numpy and Pillow, no torch; never unpickles."""
