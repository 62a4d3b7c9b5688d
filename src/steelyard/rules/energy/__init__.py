"""SY4xx: energy and power, measured and published."""
