"""What lies beside the versions: effects, leases, signals, records."""
