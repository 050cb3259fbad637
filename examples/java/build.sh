#!/bin/sh
# Builds the agent in Java; see ../README.md. It runs in the root of the repository.
set -eu
OUT=$PWD/build/examples/java

lacks() { echo "$1" >&2; exit 77; }
command -v javac >/dev/null || lacks 'a JDK is not installed'
command -v mvn >/dev/null || lacks 'Maven is not installed'

# Maven loads protoc and its plugin for gRPC together with the libraries. Later builds find all of them on this machine.
if [ ! -d "$OUT/lib" ]; then
    mvn --quiet --batch-mode --file examples/java/pom.xml dependency:copy-dependencies ||
        lacks 'Maven cannot load the libraries'
fi
mvn --quiet --batch-mode --file examples/java/pom.xml package

printf '#!/bin/sh\nexec java -cp "%s/classes:%s/lib/*" com.example.agent.Agent "$@"\n' "$OUT" "$OUT" >"$OUT/agent"
chmod +x "$OUT/agent"
