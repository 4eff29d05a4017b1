import java.time.Duration;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;

/** Measures a stretch of a run: messages acknowledged, and this process's processor time. */
final class Window {
    private static final long START_MS = 60_000;
    private static final long POLL_MS = 20;

    private final LongAdder acknowledged = new LongAdder();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    /** So many more messages are acknowledged. */
    void add(long messages) {
        acknowledged.add(messages);
    }

    /** The run is void. */
    void fail(Throwable reason) {
        failure.compareAndSet(null, reason);
    }

    /**
     * Waits for the first message, then for the warm-up, then measures until the time is over or `last`
     * messages are acknowledged.
     *
     * @return "messages/s, microseconds of processor a message, seconds", with spaces between
     * @throws Exception a call failed, or nothing came
     */
    String measure(long warmUpMs, long measureMs, long last) throws Exception {
        long startedMs = System.currentTimeMillis();
        while (count() == 0) {
            pause();
            if (System.currentTimeMillis() - startedMs > START_MS) {
                throw new TimeoutException("no message is acknowledged after " + START_MS + " ms");
            }
        }
        Thread.sleep(warmUpMs);
        long firstCount = count();
        long firstNs = System.nanoTime();
        Duration firstCpu = cpu();
        while (System.nanoTime() - firstNs < measureMs * 1_000_000 && count() < last) {
            pause();
        }
        long messages = count() - firstCount;
        double seconds = (System.nanoTime() - firstNs) / 1e9;
        double cpuUs = cpu().minus(firstCpu).toNanos() / 1e3;
        if (messages == 0) {
            throw new IllegalStateException("no message was left to measure after the warm-up");
        }
        return messages / seconds + " " + cpuUs / messages + " " + seconds;
    }

    private void pause() throws Exception {
        Thread.sleep(POLL_MS);
        count();
    }

    private long count() throws Exception {
        Throwable reason = failure.get();
        if (reason != null) {
            throw new IllegalStateException("the run failed", reason);
        }
        return acknowledged.sum();
    }

    private static Duration cpu() {
        return ProcessHandle.current().info().totalCpuDuration().orElseThrow();
    }
}
