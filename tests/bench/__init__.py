"""Benchmarks: `python -m tests.bench`. They compare side by side in one run and never gate a test.

payload.py       the messages: recorded where there are any, else generated
field.py         who takes part, and why the others do not
peers/           one file per contender: what a step and a read are for it; `keepers.py` the programs that keep files
files.py         a directory of files that changes as an agent's does
agent.py         a process that keeps such a directory
servers.py       throw-away PostgreSQL, Redis and etcd
neighbours.py    callers that take much of a daemon
processes.py     CPU and memory of a server
rounds.py        calls in turn, and their percentiles
load/            a compiled client in Go for other servers; Stateward's is the load mode of examples/go
sections/        one file per table
aims.py          what was promised, and whether it holds
report.py        tables, JSON, facts of the machine
picture.py       the SVG
"""
