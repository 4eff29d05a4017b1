#!/bin/sh
# Generates the contract's Go code into gen/ and builds bin/receiver.
# PROTO: folder of the published contract; PROTOC: the compiler, or "python -m grpc_tools.protoc".
set -eu
cd "$(dirname "$0")"
proto=${PROTO:-../../app/sdk/receiver}
file=switchyard/v1/receiver.proto
package=switchyard.example/receiver/gen

mkdir -p gen
GOBIN="$PWD/bin" go install tool # protoc's two plugins, in the versions that go.mod names
PATH="$PWD/bin:$PATH" ${PROTOC:-protoc} -I "$proto" \
	--go_out=. --go_opt=module=switchyard.example/receiver --go_opt="M$file=$package" \
	--go-grpc_out=. --go-grpc_opt=module=switchyard.example/receiver --go-grpc_opt="M$file=$package" \
	"$file"
go build -o bin/receiver .
