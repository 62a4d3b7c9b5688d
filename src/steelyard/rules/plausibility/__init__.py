"""SY7xx: implausible figures."""
