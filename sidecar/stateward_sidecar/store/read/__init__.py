"""What calls read: states, logs, lists, watches."""
