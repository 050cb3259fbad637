"""What runs a call: threads that work, ownership, durability, streams, errors."""
