"""What `stateward demo` plays."""
