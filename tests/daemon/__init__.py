"""The daemon as tests run it, in three levels. A test takes the lowest one on which its danger exists.

1. `store`: a store alone, in the test's process. No service, no archive, no gRPC. For what must happen between two
   writes, and for data that are opened some hundred times.
2. A daemon inside the test's process, which the test may stop, count or fail at any place:
   `inside` has all of it, wired by the daemon's own `app`, behind its socket; its threads run as they like.
   `driven` has the real store, archive and services without gRPC. Nothing happens by itself: a test says when a thread
   is shipped and how late it is. In a `town` some of them share a bucket in memory. `unthreaded` is what takes the
   place of threads and waits there, and `small` makes its limits so small that a dozen saves make packs.
3. `process`: a daemon as a process, started, killed and reached as by its users. `stateward.testing.run_daemon` for
   one, `Fleet` for several machines with one bucket, with environments of their own, and `Pair` for two.

`wire` is a daemon seen through generated stubs, for levels 2 and 3; with the channel of `framed` over frames. `clocks`
are the clocks of levels 1 and 2, `segments` makes those of logs small on level 1. `between` is the way to the bucket of
level 2, on which requests can be held back.

What has a life of its own stands on these levels in its own folder: `tests/archive_model` (driven machines whose calls
take turns), `tests/faults/rig.py` (stores with damaged rows), `tests/blobs/desk.py` (blobs on the wire),
`tests/histories/machines.py` (processes in bad weather), `tests/soak` (campaigns of processes).
"""
