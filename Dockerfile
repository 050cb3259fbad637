# The daemon as an image. Data and the generated key lie in one volume, the socket in another:
#
#   docker build -t stateward .
#   docker run -v stateward-data:/var/lib/stateward -v stateward-socket:/run/stateward stateward

ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# A virtual environment can be copied whole into an image of the same Python.
RUN python -m venv /opt/stateward \
    && /opt/stateward/bin/pip install --no-cache-dir "$(echo /wheels/stateward-*.whl)[sidecar,cli,metrics,otel]"

FROM python:${PYTHON_VERSION}-slim
COPY --from=build /opt/stateward /opt/stateward
# A number and not a name: Kubernetes can tell only from a number that it is not root. 0770: agents of the group may dial.
RUN install -d -o 65532 -g 65532 -m 0700 /var/lib/stateward \
    && install -d -o 65532 -g 65532 -m 0770 /run/stateward
USER 65532:65532
# HOME: a key that the daemon makes for itself has to live as long as the data it opens.
ENV PATH=/opt/stateward/bin:$PATH \
    HOME=/var/lib/stateward \
    PYTHONUNBUFFERED=1 \
    STATEWARD_DATA_DIR=/var/lib/stateward/data \
    STATEWARD_LISTEN=unix:///run/stateward/stateward.sock
VOLUME ["/var/lib/stateward", "/run/stateward"]
# Exec form: SIGTERM reaches the daemon itself, which then finishes what it took. Liveness: whoever sees the check fail
# restarts the container, which helps a daemon that does not answer, and none that is not ready.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["stateward-sidecar", "--health", "liveness"]
ENTRYPOINT ["stateward-sidecar"]
