"""Where the clients meet gRPC and wait. `aio` and `blocking` have modules and names in pairs."""
