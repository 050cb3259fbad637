#!/bin/sh
# Builds the agent in Go; see ../README.md. It runs in the root of the repository.
set -eu
OUT=$PWD/build/examples/go
MODULE=github.com/stateward/stateward/gen/go

lacks() { echo "$1" >&2; exit 77; }
command -v go >/dev/null || lacks 'Go is not installed'
command -v protoc >/dev/null || lacks 'protoc is not installed'

# The plugins of protoc, and the modules. Later builds find them in the caches of Go.
mkdir -p "$OUT/gen"
export GOBIN=$OUT/bin
go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.10 &&
    go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1 || lacks 'Go cannot load the plugins of protoc'

PATH=$OUT/bin:$PATH protoc -I proto --go_out="$OUT/gen" --go_opt=module=$MODULE \
    --go-grpc_out="$OUT/gen" --go-grpc_opt=module=$MODULE proto/stateward/v1/*.proto
printf 'module %s\n\ngo 1.24.0\n' $MODULE >"$OUT/gen/go.mod"

cd examples/go
go mod download || lacks 'Go cannot load its modules'
go build -o "$OUT/agent" .
