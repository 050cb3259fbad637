#!/bin/sh
# Builds the agent in TypeScript; see ../README.md. Run it in the root of the repository.
set -eu
OUT=build/examples/typescript

lacks() { echo "$1" >&2; exit 77; }
command -v node >/dev/null || lacks 'Node is not installed'
command -v npm >/dev/null || lacks 'npm is not installed'
MAJOR=$(node --version | tr -d v | cut -d. -f1)
[ "$MAJOR" -ge 20 ] || lacks "Node is $MAJOR, and 20 is needed"

# npm works beside its files, so they are copied. It loads the packages again only if the lock file has changed.
mkdir -p $OUT
LOCKED=$OUT/node_modules/locked.json
cp examples/typescript/*.json examples/typescript/*.ts examples/typescript/.npmrc $OUT
if ! cmp -s $OUT/package-lock.json $LOCKED; then
    npm ci --prefix $OUT --no-audit --no-fund || lacks 'npm cannot load the packages'
fi
cp $OUT/package-lock.json $LOCKED

rm -rf $OUT/generated
$OUT/node_modules/.bin/proto-loader-gen-types --longs=String --enums=String --defaults --oneofs \
    --grpcLib=@grpc/grpc-js --targetFileExtension=.ts --importFileExtension=.js \
    --includeDirs=proto --outDir=$OUT/generated \
    stateward/v1/blob_service.proto stateward/v1/checkpoint_service.proto stateward/v1/effect_service.proto \
    stateward/v1/lease_service.proto stateward/v1/record_service.proto stateward/v1/signal_service.proto \
    stateward/v1/thread_service.proto stateward/v1/writer_service.proto \
    google/rpc/status.proto google/rpc/error_details.proto >/dev/null
$OUT/node_modules/.bin/tsc --project $OUT

printf '#!/bin/sh\nexec node "$(dirname "$0")/agent.js" "$@"\n' >$OUT/agent
chmod +x $OUT/agent
