"""A thread in memory: who it is, its head, its blocks of entries, and finding it."""
