"""Pure functions between states and the bytes at rest; no I/O, no clock."""
