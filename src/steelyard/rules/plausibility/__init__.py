"""SY7xx: figures that are unlikely beside the others."""
