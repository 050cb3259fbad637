"""Generated messages at rest, `proto/stateward/storage/v1`. For the daemon only."""
