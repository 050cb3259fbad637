// The load that `make bench` measures Stateward with, beside that of other servers in tests/bench/load.
package main

import "example.com/load"

var loads = map[string]load.Opener{"stateward": load.Grpc("/stateward.v1.CheckpointService/Save", load.SaveRequest)}
