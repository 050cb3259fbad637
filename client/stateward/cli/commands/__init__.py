"""One file a command, or for commands that share their options."""
