import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.reactor.ReactorProcessor;
import io.grpc.stub.StreamObserver;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

/**
 * A peer of the bench `dispatch-unary`: Confluent Parallel Consumer, whose function makes a unary call by
 * grpc-java.
 *
 * <p>Each line of standard input, "address topic group in_flight warm_up_ms measure_ms last", is a run: a new
 * group reads the topic from its beginning. Each is answered with the figures of {@link Window}. One process
 * serves all runs, so that its code is compiled and warm, as a service's is.
 */
public final class ParallelConsumerPeer {
    private static final int POLL_RECORDS = 5_000;

    private ParallelConsumerPeer() {}

    /** Arguments: bootstrap servers, the method's name. */
    public static void main(String[] arguments) {
        try {
            serve(arguments);
        } catch (Exception reason) {
            reason.printStackTrace();
            System.exit(1); // threads of a failed run would keep the process
        }
        System.exit(0);
    }

    private static void serve(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(run(arguments[0], arguments[1], line.split(" ")));
        }
    }

    private static String run(String bootstrap, String method, String[] words) throws Exception {
        String topic = words[1];
        String group = words[2];
        ParallelConsumerOptions<byte[], byte[]> options =
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .consumer(new KafkaConsumer<>(Settings.of(bootstrap, group, POLL_RECORDS)))
                        .ordering(ProcessingOrder.UNORDERED)
                        .maxConcurrency(Integer.parseInt(words[3]))
                        .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                        .build();
        Window window = new Window();
        try (Calls calls = new Calls(words[0], method)) {
            ReactorProcessor<byte[], byte[]> processor =
                    new ReactorProcessor<>(options, Schedulers::immediate);
            processor.subscribe(List.of(topic));
            processor.react(
                    context -> Mono.fromFuture(call(calls, context.getSingleConsumerRecord(), group, window)));
            String figures =
                    window.measure(Long.parseLong(words[4]), Long.parseLong(words[5]), Long.parseLong(words[6]));
            processor.closeDontDrainFirst();
            return figures;
        }
    }

    private static CompletableFuture<Boolean> call(
            Calls calls, ConsumerRecord<byte[], byte[]> record, String group, Window window) {
        CompletableFuture<Boolean> answer = new CompletableFuture<>();
        calls.call(
                record,
                group,
                new StreamObserver<>() {
                    @Override
                    public void onNext(Void nothing) {}

                    @Override
                    public void onError(Throwable reason) {
                        window.fail(reason);
                        answer.completeExceptionally(reason);
                    }

                    @Override
                    public void onCompleted() {
                        window.add(1);
                        answer.complete(true); // without a value, ReactorProcessor never ends the message
                    }
                });
        return answer;
    }
}
