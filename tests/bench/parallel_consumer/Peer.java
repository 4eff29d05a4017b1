import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/**
 * The peer of the bench `dispatch-stream`: Confluent Parallel Consumer with a handler that sleeps.
 *
 * <p>Each line of standard input, "order latency_ms concurrency group count", is a run: the group reads the
 * topic from its beginning until `count` messages are handled. Each is answered with the messages a second
 * handled between the shares HEAD and TAIL of the count. One process serves all runs, so that its code is
 * compiled and warm, as a service's is.
 */
public final class Peer {
    private static final double HEAD = 0.1;
    private static final double TAIL = 0.9;

    private Peer() {}

    /** Arguments: bootstrap servers, topic. */
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            double perSecond =
                    run(
                            arguments[0],
                            arguments[1],
                            ProcessingOrder.valueOf(words[0]),
                            Long.parseLong(words[1]),
                            Integer.parseInt(words[2]),
                            words[3],
                            Long.parseLong(words[4]));
            System.out.println(perSecond);
        }
    }

    private static double run(
            String bootstrap,
            String topic,
            ProcessingOrder order,
            long latencyMs,
            int concurrency,
            String group,
            long count)
            throws InterruptedException {
        ParallelConsumerOptions<byte[], byte[]> options =
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .consumer(new KafkaConsumer<>(Settings.of(bootstrap, group)))
                        .ordering(order)
                        .maxConcurrency(concurrency)
                        .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                        .build();
        ParallelStreamProcessor<byte[], byte[]> processor =
                ParallelStreamProcessor.createEosStreamProcessor(options);
        long head = (long) (count * HEAD);
        long tail = (long) (count * TAIL);
        long[] marks = new long[2];
        AtomicLong handled = new AtomicLong();
        CountDownLatch finished = new CountDownLatch(1);
        processor.subscribe(List.of(topic));
        processor.poll(
                context -> {
                    if (latencyMs > 0) {
                        sleep(latencyMs);
                    }
                    long number = handled.incrementAndGet();
                    if (number == head) {
                        marks[0] = System.nanoTime();
                    } else if (number == tail) {
                        marks[1] = System.nanoTime();
                        finished.countDown();
                    }
                });
        finished.await();
        processor.closeDontDrainFirst();
        return (tail - head) * 1e9 / (marks[1] - marks[0]);
    }

    private static void sleep(long latencyMs) {
        try {
            Thread.sleep(latencyMs);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
