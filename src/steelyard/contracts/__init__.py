"""What the two sides say to each other, as plain dataclasses: standard library only, Python 3.10."""
