"""Generated messages and stubs of the contract, `proto/stateward/v1`."""
