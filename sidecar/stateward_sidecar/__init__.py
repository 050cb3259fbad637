"""The Stateward daemon."""
