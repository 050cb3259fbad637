"""Whether a call may begin, and how much memory it may take."""
