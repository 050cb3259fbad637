#!/bin/sh
# Builds the agent in Rust; see ../README.md. Run it in the root of the repository.
set -eu
OUT=build/examples/rust

lacks() { echo "$1" >&2; exit 77; }
command -v cargo >/dev/null || lacks 'Rust is not installed'
command -v protoc >/dev/null || lacks 'protoc is not installed'
MINOR=$(rustc --version | cut -d. -f2)
[ "$MINOR" -ge 88 ] || lacks "Rust is 1.$MINOR, and 1.88 is needed"

cargo fetch --locked --quiet --manifest-path examples/rust/Cargo.toml || lacks 'cargo cannot load the libraries'
# build.rs generates the code.
cargo build --locked --quiet --manifest-path examples/rust/Cargo.toml --target-dir $OUT/target
cp $OUT/target/debug/agent $OUT/agent
