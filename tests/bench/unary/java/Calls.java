import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.InputStream;
import java.util.HexFormat;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/** Unary calls by grpc-java's async stub, with the metadata that Switchyard sends; answers are ignored. */
final class Calls implements AutoCloseable {
    private static final long DEADLINE_S = 10; // Switchyard's default
    private static final HexFormat HEX = HexFormat.of();

    private static final Metadata.Key<String> TOPIC = ascii("kafka-topic");
    private static final Metadata.Key<String> GROUP = ascii("kafka-consumergroup");
    private static final Metadata.Key<String> PARTITION = ascii("kafka-partition");
    private static final Metadata.Key<String> OFFSET = ascii("kafka-offset");
    private static final Metadata.Key<String> RETRIES = ascii("kafka-retrycount");
    private static final Metadata.Key<String> ATTEMPT = ascii("kafka-attemptcount");
    private static final Metadata.Key<String> TIMESTAMP = ascii("kafka-timestamp");
    private static final Metadata.Key<String> TRACE = ascii("traceparent");
    private static final Metadata.Key<byte[]> SOURCE = binary("kafka-header-source-bin");
    private static final Metadata.Key<byte[]> KEY = binary("kafka-key-bin");

    private final MethodDescriptor<byte[], Void> method;
    private final ManagedChannel channel;

    /** Arguments: "host:port", or "host:port,authority.pem" for TLS; the method's name without the first slash. */
    Calls(String address, String method) {
        this.method =
                MethodDescriptor.newBuilder(new Bytes(), new Nothing())
                        .setType(MethodDescriptor.MethodType.UNARY)
                        .setFullMethodName(method)
                        .build();
        // Answers are handled on the transport's thread, because their handlers never wait.
        channel = builder(address.split(",")).directExecutor().build();
    }

    private static NettyChannelBuilder builder(String[] parts) {
        NettyChannelBuilder builder = NettyChannelBuilder.forTarget(parts[0]);
        if (parts.length == 1) {
            return builder.usePlaintext();
        }
        try {
            File authority = new File(parts[1]);
            return builder.sslContext(GrpcSslContexts.forClient().trustManager(authority).build());
        } catch (SSLException error) {
            throw new IllegalArgumentException(parts[1], error);
        }
    }

    /** Sends a record's value; `answer` hears of its end. */
    void call(ConsumerRecord<byte[], byte[]> record, String group, StreamObserver<Void> answer) {
        CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS);
        ClientCall<byte[], Void> call = channel.newCall(method, options);
        ClientCalls.asyncUnaryCall(new WithMetadata(call, metadata(record, group)), record.value(), answer);
    }

    @Override
    public void close() {
        channel.shutdownNow();
    }

    private static Metadata metadata(ConsumerRecord<byte[], byte[]> record, String group) {
        Metadata metadata = new Metadata();
        metadata.put(TOPIC, record.topic());
        metadata.put(GROUP, group);
        metadata.put(PARTITION, Integer.toString(record.partition()));
        metadata.put(OFFSET, Long.toString(record.offset()));
        metadata.put(RETRIES, "0");
        metadata.put(ATTEMPT, "1");
        metadata.put(TIMESTAMP, Long.toString(record.timestamp()));
        metadata.put(TRACE, traceparent());
        for (Header header : record.headers()) {
            metadata.put(SOURCE, header.value()); // the bench's records have this header only
        }
        metadata.put(KEY, record.key());
        return metadata;
    }

    private static String traceparent() {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        String trace = HEX.toHexDigits(random.nextLong()) + HEX.toHexDigits(random.nextLong());
        return "00-" + trace + "-" + HEX.toHexDigits(random.nextLong()) + "-00";
    }

    private static Metadata.Key<String> ascii(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    private static Metadata.Key<byte[]> binary(String name) {
        return Metadata.Key.of(name, Metadata.BINARY_BYTE_MARSHALLER);
    }

    /** A call that begins with this metadata. */
    private static final class WithMetadata extends SimpleForwardingClientCall<byte[], Void> {
        private final Metadata metadata;

        WithMetadata(ClientCall<byte[], Void> call, Metadata metadata) {
            super(call);
            this.metadata = metadata;
        }

        @Override
        public void start(Listener<Void> listener, Metadata empty) {
            super.start(listener, metadata);
        }
    }

    private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream stream) {
            throw new UnsupportedOperationException("requests are not read here");
        }
    }

    private static final class Nothing implements MethodDescriptor.Marshaller<Void> {
        @Override
        public InputStream stream(Void value) {
            throw new UnsupportedOperationException("answers are not sent here");
        }

        @Override
        public Void parse(InputStream stream) {
            return null;
        }
    }
}
