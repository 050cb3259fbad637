# The daemon as an image. Data and the generated key lie in one volume, the socket in another:
#
#   docker build -t stateward .
#   docker run --read-only -v stateward-data:/var/lib/stateward -v stateward-socket:/run/stateward stateward
#
# For a key in AWS KMS, Vault or OpenBao it needs their packages: --build-arg SERVICES="aws vault", or one of the two.
#
# `make image-pin` adds the digest that the base has at the registry, which a release needs.

ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /source
COPY deploy/image /requirements
# Every package by its hash, also the one that builds the wheel.
RUN python3 -m venv /builder \
    && /builder/bin/pip install --no-cache-dir --require-hashes -r /requirements/build-requirements.txt
# Without pip: the image installs nothing later. A virtual environment can be copied whole into an image of the same Python.
RUN python3 -m venv --without-pip /opt/stateward \
    && /builder/bin/pip --python /opt/stateward/bin/python install --no-cache-dir --no-compile \
        --only-binary=:all: --require-hashes -r /requirements/requirements.txt
ARG SERVICES=""
# What they add to the list above, and the list of those parts.
RUN for service in ${SERVICES}; do \
        /builder/bin/pip --python /opt/stateward/bin/python install --no-cache-dir --no-compile --no-deps \
            --only-binary=:all: --require-hashes -r "/requirements/${service}-requirements.txt" \
        && install -D -m 0644 -t /opt/stateward/share "/requirements/${service}.cdx.json" || exit 1; \
    done
COPY . .
RUN /builder/bin/python -m hatchling build -t wheel -d /wheels \
    && /builder/bin/pip --python /opt/stateward/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && /opt/stateward/bin/python -m compileall -q /opt/stateward/lib

FROM ${BASE}
COPY --from=build /opt/stateward /opt/stateward
# The list of its parts, which scanners of images look for by this ending.
COPY deploy/image/stateward.cdx.json /opt/stateward/share/
# A number and not a name: Kubernetes can tell only from a number that it is not root. 0770: agents of the group may dial.
RUN install -d -o 65532 -g 65532 -m 0700 /var/lib/stateward \
    && install -d -o 65532 -g 65532 -m 0770 /run/stateward
USER 65532:65532
# HOME: a key that the daemon makes for itself has to live as long as the data it opens.
ENV PATH=/opt/stateward/bin:$PATH \
    HOME=/var/lib/stateward \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    STATEWARD_DATA_DIR=/var/lib/stateward/data \
    STATEWARD_LISTEN=unix:///run/stateward/stateward.sock
VOLUME ["/var/lib/stateward", "/run/stateward"]
# Exec form: SIGTERM reaches the daemon itself, which then finishes what it took.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["stateward-sidecar", "--health", "liveness"]
ENTRYPOINT ["stateward-sidecar"]
