import io.grpc.InsecureServerCredentials;
import io.grpc.KnownLength;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.Marshaller;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.ServerCredentials;
import io.grpc.ServerServiceDefinition;
import io.grpc.TlsServerCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollServerDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.grpc.stub.ServerCalls;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * A gRPC server in Java for the tests of our client. The options are those of all peers, see ../__init__.py.
 *
 * <p>grpc-java raises a connection age of less than a second to a second.
 */
final class Server {
  private static final Set<String> NAMES = Set.of("--port", "--unix", "--tls-cert", "--tls-key", "--client-ca",
      "--max-concurrent-streams", "--max-connection-age-ms", "--max-connection-age-grace-ms", "--max-message");
  private static final String UNTIL_STDIN_ENDS = "--until-stdin-ends";

  private Server() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = options(arguments);
    NettyServerBuilder builder = listening(options).directExecutor()
        .addService(new TestService("/interop.binpb").definition())
        .addService(benchService());
    if (options.containsKey("--max-message")) {
      builder.maxInboundMessageSize(Integer.parseInt(options.get("--max-message")));
    }
    if (options.containsKey("--max-concurrent-streams")) {
      builder.maxConcurrentCallsPerConnection(Integer.parseInt(options.get("--max-concurrent-streams")));
    }
    if (options.containsKey("--max-connection-age-ms")) {
      long ageMs = Long.parseLong(options.get("--max-connection-age-ms"));
      builder.maxConnectionAge(ageMs, TimeUnit.MILLISECONDS);
    }
    if (options.containsKey("--max-connection-age-grace-ms")) {
      long graceMs = Long.parseLong(options.get("--max-connection-age-grace-ms"));
      builder.maxConnectionAgeGrace(graceMs, TimeUnit.MILLISECONDS);
    }
    io.grpc.Server server = builder.build().start();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(server)));
    if (options.containsKey(UNTIL_STDIN_ENDS)) {
      var watcher = new Thread(Server::endWithStdin);
      watcher.setDaemon(true);
      watcher.start();
    }
    String unix = options.get("--unix");
    System.out.print("listening on " + (unix == null ? server.getPort() : unix) + "\n");
    System.out.flush();
    server.awaitTermination();
  }

  private static NettyServerBuilder listening(Map<String, String> options) throws IOException {
    ServerCredentials credentials = credentials(options);
    if (!options.containsKey("--unix")) {
      int port = Integer.parseInt(options.getOrDefault("--port", "0"));
      return NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", port), credentials);
    }
    return NettyServerBuilder.forAddress(new DomainSocketAddress(options.get("--unix")), credentials)
        .channelType(EpollServerDomainSocketChannel.class)
        .bossEventLoopGroup(new EpollEventLoopGroup(1))
        .workerEventLoopGroup(new EpollEventLoopGroup());
  }

  private static ServerCredentials credentials(Map<String, String> options) throws IOException {
    if (!options.containsKey("--tls-cert")) {
      return InsecureServerCredentials.create();
    }
    var builder = TlsServerCredentials.newBuilder()
        .keyManager(new File(options.get("--tls-cert")), new File(options.get("--tls-key")));
    if (options.containsKey("--client-ca")) {
      builder.trustManager(new File(options.get("--client-ca")));
      builder.clientAuth(TlsServerCredentials.ClientAuth.REQUIRE);
    }
    return builder.build();
  }

  /** Waits for calls in progress. The JVM would end with another code than 0 after SIGTERM. */
  private static void stop(io.grpc.Server server) {
    try {
      server.shutdown().awaitTermination();
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
    Runtime.getRuntime().halt(0);
  }

  private static void endWithStdin() {
    try {
      System.in.transferTo(java.io.OutputStream.nullOutputStream());
    } catch (IOException ended) {
      // It ended, too.
    }
    Runtime.getRuntime().halt(0);
  }

  private static Map<String, String> options(String[] arguments) {
    var found = new HashMap<String, String>();
    Deque<String> left = new ArrayDeque<>(List.of(arguments));
    while (!left.isEmpty()) {
      String name = left.pop();
      if (name.equals(UNTIL_STDIN_ENDS)) {
        found.put(name, "");
      } else if (NAMES.contains(name) && !left.isEmpty()) {
        found.put(name, left.pop());
      } else {
        throw new IllegalArgumentException(name + " is no option, or lacks its value; options: " + NAMES);
      }
    }
    return found;
  }

  /** Answers every message with an empty one, and reads no message. */
  private static ServerServiceDefinition benchService() {
    String name = "switchyard.bench.Echo";
    var method = MethodDescriptor.<String, String>newBuilder()
        .setType(MethodType.UNARY)
        .setFullMethodName(MethodDescriptor.generateFullMethodName(name, "Call"))
        .setRequestMarshaller(Ignored.MARSHALLER)
        .setResponseMarshaller(Ignored.MARSHALLER)
        .build();
    return ServerServiceDefinition.builder(name)
        .addMethod(method, ServerCalls.asyncUnaryCall((request, responses) -> {
          responses.onNext(request);
          responses.onCompleted();
        }))
        .build();
  }

  /** A message whose bytes nobody reads; as an answer it is empty. */
  private static final class Ignored extends ByteArrayInputStream implements KnownLength {
    static final Marshaller<String> MARSHALLER = new Marshaller<>() {
      @Override
      public InputStream stream(String value) {
        return new Ignored();
      }

      @Override
      public String parse(InputStream stream) {
        return "";
      }
    };

    Ignored() {
      super(new byte[0]);
    }
  }
}
