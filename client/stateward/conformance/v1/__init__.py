"""Generated messages of the golden exchanges, `proto/stateward/conformance/v1`."""
