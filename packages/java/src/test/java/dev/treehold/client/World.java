package dev.treehold.client;

import java.io.IOException;
import java.time.Duration;
import java.util.UUID;

/** What the tests share: a server that runs until the last test, and clients of it. */
final class World {
    private static ServedStore served;

    private World() {}

    static synchronized String baseUrl() throws IOException {
        if (served == null) {
            served = new ServedStore().start();
        }
        return served.baseUrl();
    }

    static synchronized void stop() {
        if (served != null) {
            served.close();
            served = null;
        }
    }

    static TreeholdClient client() throws IOException {
        return patient(baseUrl()).build();
    }

    /** A client that tries often, with short pauses. */
    static TreeholdClient.Builder patient(String baseUrl) {
        return TreeholdClient.builder(baseUrl)
                .attemptsMax(200)
                .pauses(Duration.ofMillis(10), Duration.ofMillis(200))
                .timeout(Duration.ofSeconds(60));
    }

    /** Returns an id that no other test uses. */
    static String fresh(String prefix) {
        return prefix + "-" + UUID.randomUUID();
    }

    /** Opens the states of an agent that no other test uses. */
    static TreeholdAgentStateStore states() throws IOException {
        return new TreeholdAgentStateStore(client(), fresh("agent"), StateCodecs.json());
    }
}
