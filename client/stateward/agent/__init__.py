"""What an agent knows, in types. See `AgentState` once it is there."""
