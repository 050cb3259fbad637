"""The daemon of a data directory: finding it, starting it, and using it while it lives.

`stateward.open()` is in `clients`. The files that lead to the daemon, who holds which lock when, and what each crash
leaves are described in README.md beside this.
"""
