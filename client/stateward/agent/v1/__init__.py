"""Generated messages of what an agent knows, `proto/stateward/agent/v1`."""
