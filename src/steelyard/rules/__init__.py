"""What makes a number unfit to be believed or compared: one class a code, for our own records and published tables."""
