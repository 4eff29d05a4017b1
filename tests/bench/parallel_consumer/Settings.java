import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The settings of the consumers in all benches with Parallel Consumer, which commits by itself. */
final class Settings {
    private Settings() {}

    /** A consumer that reads from the beginning, as many records a poll as is Kafka's default. */
    static Properties of(String bootstrap, String group) {
        Properties settings = new Properties();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        settings.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        settings.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        return settings;
    }

    /** The same with `max.poll.records`. */
    static Properties of(String bootstrap, String group, int pollRecords) {
        Properties settings = of(bootstrap, group);
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, pollRecords);
        return settings;
    }
}
