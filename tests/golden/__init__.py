"""The data of each format: a data directory, its archive and a backup. A released format's file is never rewritten."""
