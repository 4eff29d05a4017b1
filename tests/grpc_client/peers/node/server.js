// A gRPC server in Node for the tests of our client. The options are those of all peers, see ../__init__.py.
//
// grpc-js never compresses responses, and Node sends no metadata above 64 KiB.
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import grpc from '@grpc/grpc-js';
import protobuf from 'protobufjs';

const INITIAL = 'x-grpc-test-echo-initial';
const TRAILING = 'x-grpc-test-echo-trailing-bin';
const DEFAULT_MAX_MESSAGE = 4 * 1024 * 1024;

const root = protobuf.loadSync(new URL('interop.proto', import.meta.url).pathname);

// The number in a call's metadata, 0 without one.
function number(call, key) {
  return Number(call.metadata.get(key)[0] ?? 0);
}

function zeros(size) {
  return { payload: { body: Buffer.alloc(size) } };
}

// Sends the initial metadata that the call's metadata asks for; returns the trailing metadata.
function answerMetadata(call) {
  const initial = new grpc.Metadata();
  call.metadata.get(INITIAL).forEach((value) => initial.add(INITIAL, value));
  if (initial.get(INITIAL).length) call.sendMetadata(initial);
  const trailing = new grpc.Metadata();
  call.metadata.get(TRAILING).forEach((value) => trailing.add(TRAILING, value));
  const letters = number(call, 'x-test-big-trailer');
  if (letters) trailing.set('x-test-big', 'x'.repeat(letters));
  return trailing;
}

// The error that a request asks for, null for none. Adds its details to the trailing metadata.
function wantedStatus(call, wanted, trailing) {
  if (!wanted?.code) return null;
  if (number(call, 'x-test-details')) {
    const value = root.lookupType('grpc.testing.EchoStatus').encode(wanted).finish();
    const details = [{ typeUrl: 'type.googleapis.com/grpc.testing.EchoStatus', value }];
    const bytes = root.lookupType('grpc.testing.DetailedStatus').encode({ ...wanted, details }).finish();
    trailing.set('grpc-status-details-bin', Buffer.from(bytes));
  }
  return { code: wanted.code, details: wanted.message, metadata: trailing };
}

// Sends the responses that a request asks for; returns the error that it asks for, null for none.
async function answer(call, request, trailing) {
  for (const { size, intervalUs } of request.responseParameters) {
    if (intervalUs) await sleep(intervalUs / 1000);
    if (call.cancelled) return null;
    call.write(zeros(size));
  }
  return wantedStatus(call, request.responseStatus, trailing);
}

const handlers = {
  EmptyCall(call, callback) {
    callback(null, {});
  },

  async UnaryCall(call, callback) {
    const trailing = answerMetadata(call);
    await sleep(number(call, 'x-test-sleep-ms'));
    const error = wantedStatus(call, call.request.responseStatus, trailing);
    callback(error, error ? null : zeros(call.request.responseSize), trailing);
  },

  async StreamingOutputCall(call) {
    const trailing = answerMetadata(call);
    const error = await answer(call, call.request, trailing);
    if (error) call.emit('error', error);
    else call.end(trailing);
  },

  async FullDuplexCall(call) {
    const trailing = answerMetadata(call);
    let error = null;
    for await (const request of call.iterator({ destroyOnReturn: false })) {
      error = await answer(call, request, trailing);
      if (error) break;
    }
    if (error) call.emit('error', error);
    else call.end(trailing);
  },
};

// grpc-js' definition of the service in the .proto file, and that of the service for benchmarks.
function testService() {
  const definition = {};
  for (const method of root.lookupService('grpc.testing.TestService').methodsArray) {
    const { resolvedRequestType: Request, resolvedResponseType: Response } = method.resolve();
    definition[method.name] = {
      path: `/grpc.testing.TestService/${method.name}`,
      requestStream: Boolean(method.requestStream),
      responseStream: Boolean(method.responseStream),
      requestDeserialize: (bytes) => Request.decode(bytes),
      responseSerialize: (message) => Buffer.from(Response.encode(message).finish()),
    };
  }
  return definition;
}

const NOTHING = Buffer.alloc(0);
const BENCH_SERVICE = {
  Call: {
    path: '/switchyard.bench.Echo/Call',
    requestStream: false,
    responseStream: false,
    requestDeserialize: (bytes) => bytes,
    responseSerialize: (bytes) => bytes,
  },
};

function credentials(options) {
  if (!options['tls-cert']) return grpc.ServerCredentials.createInsecure();
  const authority = options['client-ca'] ? readFileSync(options['client-ca']) : null;
  const pair = { cert_chain: readFileSync(options['tls-cert']), private_key: readFileSync(options['tls-key']) };
  return grpc.ServerCredentials.createSsl(authority, [pair], authority !== null);
}

function channelOptions(options) {
  const chosen = { 'grpc.max_receive_message_length': Number(options['max-message'] ?? DEFAULT_MAX_MESSAGE) };
  for (const name of ['max-concurrent-streams', 'max-connection-age-ms', 'max-connection-age-grace-ms']) {
    if (options[name]) chosen[`grpc.${name.replaceAll('-', '_')}`] = Number(options[name]);
  }
  return chosen;
}

const TEXT = { type: 'string' };
const { values: options } = parseArgs({
  options: {
    port: TEXT,
    unix: TEXT,
    'tls-cert': TEXT,
    'tls-key': TEXT,
    'client-ca': TEXT,
    'max-concurrent-streams': TEXT,
    'max-connection-age-ms': TEXT,
    'max-connection-age-grace-ms': TEXT,
    'max-message': TEXT,
    'until-stdin-ends': { type: 'boolean' },
  },
});
const server = new grpc.Server(channelOptions(options));
server.addService(testService(), handlers);
server.addService(BENCH_SERVICE, { Call: (call, callback) => callback(null, NOTHING) });
process.on('SIGTERM', () => server.tryShutdown(() => process.exit(0)));
if (options['until-stdin-ends']) process.stdin.on('end', () => process.exit(0)).resume();
const address = options.unix ? `unix:${options.unix}` : `127.0.0.1:${options.port ?? 0}`;
server.bindAsync(address, credentials(options), (error, port) => {
  if (error) throw error;
  process.stdout.write(`listening on ${options.unix ?? port}\n`);
});
