"""Conformance of clients: a scripted daemon, and the golden exchanges that it plays.

`stateward conformance` runs it. A client of any language proves with it that it joins pages, repeats calls, resolves
conflicts and resumes streams as docs/protocol.md says.
"""
