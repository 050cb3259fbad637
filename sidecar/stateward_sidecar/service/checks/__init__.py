"""Everything that is wrong with a request, before any work."""
