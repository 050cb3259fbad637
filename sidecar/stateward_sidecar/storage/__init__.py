"""LMDB, the key store and the one writer thread; synchronous."""
