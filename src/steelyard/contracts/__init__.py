"""What the two sides say to each other, as plain dataclasses: standard library and numpy, Python 3.10."""
