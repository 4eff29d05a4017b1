import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.util.List;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/**
 * The peer of the bench `dispatch-latency`: Confluent Parallel Consumer with a handler in its own process,
 * which only counts the latency of a message in the file that all sides use (histogram.py).
 *
 * <p>A line "start topic group file" has it read a topic, and "stop" ends that. Each is answered with "0". One
 * process serves all runs, so that its code is compiled and warm, as a service's is.
 */
public final class LatencyPeer {
    private static final int STEP_NS = 50_000;
    private static final int CELLS = 20_001;
    private static final int WORD_BYTES = 8;
    private static final int CONCURRENCY = Integer.getInteger("concurrency", 16);

    private LatencyPeer() {}

    /** Arguments: bootstrap servers. */
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        ParallelStreamProcessor<byte[], byte[]> running = null;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("start")) {
                running = started(arguments[0], words[1], words[2], Path.of(words[3]));
            } else {
                running.closeDontDrainFirst();
            }
            System.out.println(0);
        }
    }

    private static ParallelStreamProcessor<byte[], byte[]> started(
            String bootstrap, String topic, String group, Path file) throws Exception {
        MappedByteBuffer cells;
        try (FileChannel channel =
                FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            cells = channel.map(FileChannel.MapMode.READ_WRITE, 0, (long) CELLS * WORD_BYTES);
        }
        cells.order(ByteOrder.LITTLE_ENDIAN);
        ParallelConsumerOptions<byte[], byte[]> options =
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .consumer(new KafkaConsumer<>(Settings.of(bootstrap, group)))
                        .ordering(ProcessingOrder.UNORDERED)
                        .maxConcurrency(CONCURRENCY)
                        .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                        .build();
        ParallelStreamProcessor<byte[], byte[]> processor =
                ParallelStreamProcessor.createEosStreamProcessor(options);
        processor.subscribe(List.of(topic));
        processor.poll(context -> note(cells, context.getSingleConsumerRecord().timestamp()));
        return processor;
    }

    private static void note(MappedByteBuffer cells, long timestampMs) {
        Instant now = Instant.now();
        long ns = (now.getEpochSecond() * 1_000 - timestampMs) * 1_000_000 + now.getNano();
        int at = (int) Math.min(Math.max(ns / STEP_NS, 0), CELLS - 1) * WORD_BYTES;
        synchronized (cells) {
            cells.putLong(at, cells.getLong(at) + 1);
        }
    }
}
