import io.grpc.stub.StreamObserver;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A peer of the bench `dispatch-unary`: consumers of a share group (KIP-932), whose records become unary calls
 * by grpc-java.
 *
 * <p>Each line of standard input, "address topic group in_flight warm_up_ms measure_ms last consumers records",
 * is a run: a new group reads the topic from its beginning. Each is answered with the figures of {@link
 * Window}. One process serves all runs, so that its code is compiled and warm, as a service's is.
 *
 * <p>A consumer has all calls of a poll in flight, as far as `in_flight` of all consumers allows, and polls
 * again when all are answered: explicit acknowledgement permits no poll before. The acknowledgements travel
 * with that poll. `records` is `max.poll.records`.
 */
public final class ShareGroupPeer {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Duration CLOSE = Duration.ofSeconds(10);

    private final Calls calls;
    private final String group;
    private final Semaphore permits;
    private final Window window = new Window();
    private volatile boolean stopped;

    private ShareGroupPeer(Calls calls, String group, int inFlight) {
        this.calls = calls;
        this.group = group;
        permits = new Semaphore(inFlight);
    }

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
        Properties settings = settings(bootstrap, group, words[8]);
        beginEarliest(bootstrap, group);
        try (Calls calls = new Calls(words[0], method)) {
            ShareGroupPeer peer = new ShareGroupPeer(calls, group, Integer.parseInt(words[3]));
            List<Thread> threads = new ArrayList<>();
            for (int at = 0; at < Integer.parseInt(words[7]); at++) {
                Thread thread = new Thread(() -> peer.consume(topic, settings), "consumer-" + at);
                thread.start();
                threads.add(thread);
            }
            String figures =
                    peer.window.measure(
                            Long.parseLong(words[4]), Long.parseLong(words[5]), Long.parseLong(words[6]));
            peer.stopped = true;
            for (Thread thread : threads) {
                thread.join();
            }
            return figures;
        }
    }

    private void consume(String topic, Properties settings) {
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.setAcknowledgementCommitCallback(
                    (offsets, reason) -> {
                        if (reason != null && !stopped) {
                            window.fail(reason);
                        }
                    });
            consumer.subscribe(List.of(topic));
            while (!stopped) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                handle(records);
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                window.add(records.count());
            }
            consumer.close(CLOSE);
        } catch (Exception reason) {
            window.fail(reason);
        }
    }

    private void handle(ConsumerRecords<byte[], byte[]> records) throws InterruptedException {
        CountDownLatch answered = new CountDownLatch(records.count());
        StreamObserver<Void> answer =
                new StreamObserver<>() {
                    @Override
                    public void onNext(Void nothing) {}

                    @Override
                    public void onError(Throwable reason) {
                        window.fail(reason);
                        onCompleted();
                    }

                    @Override
                    public void onCompleted() {
                        permits.release();
                        answered.countDown();
                    }
                };
        for (ConsumerRecord<byte[], byte[]> record : records) {
            permits.acquire();
            calls.call(record, group, answer);
        }
        answered.await();
    }

    private static void beginEarliest(String bootstrap, String group) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        Collection<AlterConfigOp> changes =
                List.of(
                        new AlterConfigOp(
                                new ConfigEntry("share.auto.offset.reset", "earliest"),
                                AlterConfigOp.OpType.SET));
        try (Admin admin = Admin.create(Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap))) {
            admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        }
    }

    private static Properties settings(String bootstrap, String group, String records) {
        Properties settings = new Properties();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        settings.put(ConsumerConfig.SHARE_ACKNOWLEDGEMENT_MODE_CONFIG, "explicit");
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, records);
        settings.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        settings.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        return settings;
    }
}
