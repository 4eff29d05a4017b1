# The worker; the command line and the sample receiver are in it too. From the repository's root:
#   docker build -f docker/worker.Dockerfile -t switchyard-worker .
# BASE: Debian 12, or what is made like it. Behind an authority of your own, put its certificates into
# docker/local/ca.crt: they are used while building, and are in no layer of the result.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY docker/lock.py requirements.lock docker/local/ca.cr[t] ./
# What fetches jars is for the yard: a worker never does.
RUN if [ -f ca.crt ]; then export PIP_CERT=/build/ca.crt; fi \
 && python3 lock.py hatchling > tools.lock \
 && python3 lock.py --without jgo > worker.lock \
 && python3 -m venv tools \
 && python3 -m venv --without-pip /opt/switchyard \
 && tools/bin/pip install --no-cache-dir --require-hashes -r tools.lock \
 && tools/bin/pip --python /opt/switchyard/bin/python install --no-cache-dir --require-hashes \
      --only-binary :all: -r worker.lock
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY agents agents
COPY tables tables
COPY spark spark
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist \
      app/sdk/receiver app/sdk/producer app/sdk/audit . \
 && tools/bin/pip --python /opt/switchyard/bin/python install --no-deps --no-index dist/*.whl

FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 switchyard \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/switchyard --no-create-home --shell /usr/sbin/nologin \
      switchyard \
 && install -d -o 10001 -g 10001 /var/lib/switchyard
COPY --from=build /opt/switchyard /opt/switchyard
COPY docker/worker/ready.py /opt/switchyard/
ENV PATH=/opt/switchyard/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SWITCHYARD_CONFIG=/etc/switchyard/switchyard.yaml \
    SWITCHYARD_HOME=/var/lib/switchyard \
    SWITCHYARD_WEB_PORT=6066
# Numbers, so that an orchestrator sees that it is not root.
USER 10001:10001
WORKDIR /var/lib/switchyard
# Copies of the tables; a worker without them rebuilds them.
VOLUME /var/lib/switchyard
EXPOSE 6066
# A worker drains on it: give it longer than worker.grace before it is killed (docker stop -t).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-IS", "/opt/switchyard/ready.py"]
# As process 1 a worker that is still starting would ignore SIGTERM; below tini it does not.
ENTRYPOINT ["tini", "--"]
CMD ["faust", "-A", "app", "worker", "-l", "info"]
