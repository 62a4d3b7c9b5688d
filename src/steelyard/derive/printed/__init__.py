"""The figures that a training program prints: formats of known trainers, and what the lines of an output say."""
