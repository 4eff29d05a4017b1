# The example receiver in Go (docker/receiver). From the repository's root:
#   docker build -f docker/receiver.Dockerfile -t switchyard-receiver .
# BASE and docker/local/ca.crt: see worker.Dockerfile. GO_BASE has Go, and Debian's apt for protoc.
ARG BASE=debian:bookworm-slim
ARG GO_BASE=golang:1.26-bookworm

FROM ${GO_BASE} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates protobuf-compiler \
 && rm -rf /var/lib/apt/lists/*
COPY app/sdk/receiver/switchyard/v1/receiver.proto /build/app/sdk/receiver/switchyard/v1/
COPY docker/receiver docker/local/ca.cr[t] /build/docker/receiver/
WORKDIR /build/docker/receiver
# Its own version of Go, no other one fetched; every module's hash stands in go.sum.
RUN if [ -f ca.crt ]; then export SSL_CERT_FILE=$PWD/ca.crt; fi \
 && CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-trimpath -ldflags=-s" ./build.sh

FROM ${BASE}
COPY --from=build /build/docker/receiver/bin/receiver /usr/local/bin/receiver
USER 10003:10003
EXPOSE 8443
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=10s --retries=3 CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8443"]
ENTRYPOINT ["receiver", "-listen", "0.0.0.0:8443"]
CMD ["-group", "billing", "-topic", "orders", "-journal", "/dev/null"]
