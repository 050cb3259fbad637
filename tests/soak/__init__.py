"""The long campaign and the power-loss model: `python -m tests.soak`. README.md beside this says what they prove."""

import os

# Read by gRPC when it is imported: it would write a line for every daemon that dies.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
