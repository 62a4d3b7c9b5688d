"""SY2xx: how many jobs there are, how steady they ran, and what they can show."""
