import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.DescriptorValidationException;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.ForwardingServerCall.SimpleForwardingServerCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptors;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.io.InputStream;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;

/** The interoperability service. Its messages are described by a file, so there is no generated code. */
final class TestService {
  private static final String NAME = "grpc.testing.TestService";
  private static final Context.Key<Metadata> HEADERS = Context.key("headers");
  private static final Metadata.Key<String> INITIAL = text("x-grpc-test-echo-initial");
  private static final Metadata.Key<byte[]> TRAILING = bytes("x-grpc-test-echo-trailing-bin");
  private static final Metadata.Key<String> SLEEP_MS = text("x-test-sleep-ms");
  private static final Metadata.Key<String> BIG_TRAILER = text("x-test-big-trailer");
  private static final Metadata.Key<String> BIG = text("x-test-big");
  private static final Metadata.Key<String> DETAILS = text("x-test-details");
  private static final Metadata.Key<byte[]> STATUS_DETAILS = bytes("grpc-status-details-bin");

  private final FileDescriptor file;

  /** Reads the description from the class path. */
  TestService(String resource) throws IOException, DescriptorValidationException {
    try (InputStream input = TestService.class.getResourceAsStream(resource)) {
      var set = FileDescriptorSet.parseFrom(input);
      file = FileDescriptor.buildFrom(set.getFile(0), new FileDescriptor[0]);
    }
  }

  /** The methods; gRPC answers UNIMPLEMENTED to all others. */
  ServerServiceDefinition definition() {
    var service = ServerServiceDefinition.builder(NAME)
        .addMethod(method("UnaryCall"), ServerCalls.asyncUnaryCall(this::unaryCall))
        .addMethod(method("StreamingOutputCall"), ServerCalls.asyncServerStreamingCall(this::streamingOutputCall))
        .addMethod(method("FullDuplexCall"), ServerCalls.asyncBidiStreamingCall(this::fullDuplexCall))
        .addMethod(method("EmptyCall"), ServerCalls.asyncUnaryCall(this::emptyCall))
        .build();
    return ServerInterceptors.intercept(service, this::withMetadata);
  }

  private void emptyCall(DynamicMessage request, StreamObserver<DynamicMessage> responses) {
    responses.onNext(request);
    responses.onCompleted();
  }

  private void unaryCall(DynamicMessage request, StreamObserver<DynamicMessage> responses) {
    var call = new Call(responses, "SimpleResponse");
    boolean isCompressed = isTrue(request, "response_compressed");
    if (isCompressed) {
      call.compress();
    }
    call.then(TimeUnit.MILLISECONDS.toMicros(number(HEADERS.get(), SLEEP_MS)), () -> {
      if (!call.endsWith(request)) {
        call.send((int) field(request, "response_size"), isCompressed);
        call.end();
      }
    });
  }

  private void streamingOutputCall(DynamicMessage request, StreamObserver<DynamicMessage> responses) {
    var call = new Call(responses, "StreamingOutputCallResponse");
    call.answer(request);
    call.then(0, call::end);
  }

  private StreamObserver<DynamicMessage> fullDuplexCall(StreamObserver<DynamicMessage> responses) {
    var call = new Call(responses, "StreamingOutputCallResponse");
    return new StreamObserver<>() {
      @Override
      public void onNext(DynamicMessage request) {
        call.answer(request);
      }

      @Override
      public void onError(Throwable canceled) {
        call.isOver = true;
      }

      @Override
      public void onCompleted() {
        call.then(0, call::end);
      }
    };
  }

  /** One call, whose responses come one after the other. */
  private final class Call {
    private final ServerCallStreamObserver<DynamicMessage> responses;
    private final Descriptor type;
    private final Metadata headers = HEADERS.get();
    private CompletableFuture<Void> last = CompletableFuture.completedFuture(null);
    private volatile boolean isOver;

    Call(StreamObserver<DynamicMessage> responses, String type) {
      this.responses = (ServerCallStreamObserver<DynamicMessage>) responses;
      this.type = file.findMessageTypeByName(type);
      this.responses.setOnCancelHandler(() -> isOver = true);
    }

    /** Does something after all before it, and after an interval. */
    void then(long intervalUs, Runnable action) {
      Executor clock = intervalUs == 0
          ? Runnable::run
          : CompletableFuture.delayedExecutor(intervalUs, TimeUnit.MICROSECONDS, Runnable::run);
      last = last.thenCompose(done -> CompletableFuture.runAsync(() -> {
        if (!isOver) {
          action.run();
        }
      }, clock));
    }

    /** Sends what a request of a stream asks for. Compression begins with the first request, or never. */
    void answer(DynamicMessage request) {
      var parameters = (List<?>) field(request, "response_parameters");
      if (last.isDone() && parameters.stream().anyMatch(one -> isTrue((DynamicMessage) one, "compressed"))) {
        compress();
      }
      for (Object one : parameters) {
        var response = (DynamicMessage) one;
        then((int) field(response, "interval_us"),
            () -> send((int) field(response, "size"), isTrue(response, "compressed")));
      }
      then(0, () -> endsWith(request));
    }

    void compress() {
      try {
        responses.setCompression("gzip");
      } catch (IllegalStateException headersAreSent) {
        // The responses go uncompressed.
      }
    }

    void send(int size, boolean isCompressed) {
      var payload = file.findMessageTypeByName("Payload");
      var body = DynamicMessage.newBuilder(payload)
          .setField(payload.findFieldByName("body"), ByteString.copyFrom(new byte[size]));
      responses.setMessageCompression(isCompressed);
      responses.onNext(
          DynamicMessage.newBuilder(type).setField(type.findFieldByName("payload"), body.build()).build());
    }

    void end() {
      isOver = true;
      responses.onCompleted();
    }

    /** Ends the call if the request asks for a status. */
    boolean endsWith(DynamicMessage request) {
      var wanted = (DynamicMessage) field(request, "response_status");
      int code = (int) field(wanted, "code");
      if (code == 0) {
        return false;
      }
      var trailers = new Metadata();
      if (headers.containsKey(DETAILS)) {
        trailers.put(STATUS_DETAILS, details(wanted));
      }
      isOver = true;
      var status = Status.fromCodeValue(code).withDescription((String) field(wanted, "message"));
      responses.onError(status.asRuntimeException(trailers));
      return true;
    }
  }

  private byte[] details(DynamicMessage wanted) {
    var type = file.findMessageTypeByName("DetailedStatus");
    var detail = type.findNestedTypeByName("Detail");
    var entry = DynamicMessage.newBuilder(detail)
        .setField(detail.findFieldByName("type_url"), "type.googleapis.com/grpc.testing.EchoStatus")
        .setField(detail.findFieldByName("value"), wanted.toByteString());
    return DynamicMessage.newBuilder(type)
        .setField(type.findFieldByName("code"), field(wanted, "code"))
        .setField(type.findFieldByName("message"), field(wanted, "message"))
        .addRepeatedField(type.findFieldByName("details"), entry.build())
        .build()
        .toByteArray();
  }

  /** Adds the metadata that a call's headers ask for. */
  private <Q, R> ServerCall.Listener<Q> withMetadata(
      ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
    if ("EmptyCall".equals(call.getMethodDescriptor().getBareMethodName())) {
      return next.startCall(call, headers);
    }
    var echoing = new SimpleForwardingServerCall<Q, R>(call) {
      private boolean areHeadersSent;

      @Override
      public void sendHeaders(Metadata sent) {
        areHeadersSent = true;
        if (headers.containsKey(INITIAL)) {
          sent.put(INITIAL, headers.get(INITIAL));
        }
        super.sendHeaders(sent);
      }

      @Override
      public void close(Status status, Metadata trailers) {
        if (!areHeadersSent && headers.containsKey(INITIAL)) {
          sendHeaders(new Metadata());
        }
        if (headers.containsKey(TRAILING)) {
          trailers.put(TRAILING, headers.get(TRAILING));
        }
        if (headers.containsKey(BIG_TRAILER)) {
          trailers.put(BIG, "x".repeat((int) number(headers, BIG_TRAILER)));
        }
        super.close(status, trailers);
      }
    };
    return Contexts.interceptCall(Context.current().withValue(HEADERS, headers), echoing, headers, next);
  }

  private MethodDescriptor<DynamicMessage, DynamicMessage> method(String name) {
    var found = file.findServiceByName("TestService").findMethodByName(name);
    var type = found.isClientStreaming()
        ? MethodType.BIDI_STREAMING
        : found.isServerStreaming() ? MethodType.SERVER_STREAMING : MethodType.UNARY;
    return MethodDescriptor.<DynamicMessage, DynamicMessage>newBuilder()
        .setType(type)
        .setFullMethodName(MethodDescriptor.generateFullMethodName(NAME, name))
        .setRequestMarshaller(ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(found.getInputType())))
        .setResponseMarshaller(ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(found.getOutputType())))
        .build();
  }

  private static Object field(DynamicMessage message, String name) {
    return message.getField(message.getDescriptorForType().findFieldByName(name));
  }

  private static boolean isTrue(DynamicMessage message, String boolValue) {
    return (boolean) field((DynamicMessage) field(message, boolValue), "value");
  }

  /** The number in the metadata, 0 without one. */
  private static long number(Metadata headers, Metadata.Key<String> key) {
    return headers.containsKey(key) ? Long.parseLong(headers.get(key)) : 0;
  }

  private static Metadata.Key<String> text(String name) {
    return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
  }

  private static Metadata.Key<byte[]> bytes(String name) {
    return Metadata.Key.of(name, Metadata.BINARY_BYTE_MARSHALLER);
  }
}
