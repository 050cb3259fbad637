"""Taking a thread, keeping it, and having its history."""
