"""Messages at rest: for the daemon only, and no part of the client's interface."""
