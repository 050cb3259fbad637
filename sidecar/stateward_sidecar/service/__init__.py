"""gRPC services: check, call one verb, answer."""
