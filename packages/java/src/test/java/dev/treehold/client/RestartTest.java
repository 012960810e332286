package dev.treehold.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;

/** Lost answers, cut connections and killed servers. */
final class RestartTest {
    @Test
    void lost_answers_and_cut_connections_save_once() throws Exception {
        Random random = new Random(Long.getLong("seed", 1L));
        try (BadNetwork network = new BadNetwork(World.baseUrl())) {
            TreeholdClient client = World.patient(network.baseUrl()).build();
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(client, World.fresh("agent"), StateCodecs.json());
            for (long round = 1; round <= 40; round += 1) {
                network.answersToLose.set(random.nextInt(3));
                network.connectionsToCut.set(random.nextInt(2));
                long version = round % 2 == 0
                        ? states.save("ada", "s", "k", round)
                        : states.saveIfVersion("ada", "s", "k", round, round - 1);
                Check.equal(round, version, "a save took effect twice, or its answer is another's");
            }
            network.answersToLose.set(0);
            Check.equal(new VersionedState<>(40L, 40), states.getVersioned("ada", "s", "k", Long.class));
            Check.isTrue(network.answersLost.get() > 10, "too few answers were lost: " + network.answersLost);
        }
    }

    @Test
    void lost_answers_and_cut_connections_give_one_turn_at_a_time() throws Exception {
        Random random = new Random(Long.getLong("seed", 1L));
        String agent = World.fresh("agent");
        try (BadNetwork network = new BadNetwork(World.baseUrl())) {
            TreeholdClient bad = World.patient(network.baseUrl()).build();
            // Shorter than the lease of a turn whose answer was lost for good.
            Duration wait = Duration.ofSeconds(20);
            TreeholdTurnGate gate = TreeholdTurnGate.builder(bad).agent(agent).waitMax(wait).build();
            TreeholdTurnGate other = TreeholdTurnGate.builder(World.client()).agent(agent).waitMax(wait).build();
            TurnKey key = new TurnKey("ada", "s");
            long fence = 0;
            for (int round = 0; round < 12; round += 1) {
                TurnLease held = round % 2 == 0 ? other.acquire(key) : null;
                CountDownLatch queued = new CountDownLatch(1);
                network.answersToLose.set(random.nextInt(3));
                network.connectionsToCut.set(random.nextInt(2));
                CompletableFuture<TurnLease> asked = new CompletableFuture<>();
                Thread thread = new Thread(() -> {
                    try {
                        asked.complete(gate.acquire(key, wait, ticket -> queued.countDown()));
                    } catch (Exception failed) {
                        asked.completeExceptionally(failed);
                        queued.countDown();
                    }
                });
                thread.start();
                if (held != null) {
                    queued.await();
                    Check.isTrue(!asked.isDone(), "two have the turn, or the wait ended: " + asked);
                    network.answersToLose.set(random.nextInt(2));
                    held.close();
                }
                try (TurnLease turn = asked.get()) {
                    Check.isTrue(turn.fence() > fence, "a later turn has a greater number");
                    fence = turn.fence();
                    Check.fails(TurnBusyException.class, () -> other.acquire(key, Duration.ZERO));
                    network.answersToLose.set(random.nextInt(2));
                }
            }
            Check.isTrue(network.answersLost.get() > 5, "too few answers were lost: " + network.answersLost);
        }
    }

    @Test
    void server_killed_between_saves_loses_none() throws Exception {
        try (ServedStore served = new ServedStore().start(); TreeholdClient client = World.patient(served.baseUrl()).build()) {
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(client);
            long version = 0;
            for (int round = 0; round < 5; round += 1) {
                for (int save = 0; save < 3; save += 1) {
                    version = states.saveIfVersion("ada", "s", "k", version + 1, version);
                }
                states.save("ada", "s", "k", List.of(round, "item"));
                served.kill();
                served.start();
                Check.equal(new VersionedState<>(version, version), states.getVersioned("ada", "s", "k", Long.class));
                Check.equal(List.of((long) round, "item"), states.getList("ada", "s", "k", Object.class));
            }
            Check.equal(15L, version);
        }
    }

    @Test
    void server_killed_during_saves_keeps_every_acknowledged_one() throws Exception {
        int writers = 4;
        int kills = Integer.getInteger("kills", 3);
        // The server keeps the key of a request that died with it for a minute; the client does not wait for that here.
        try (ServedStore served = new ServedStore().start();
                TreeholdClient client = World.patient(served.baseUrl()).timeout(Duration.ofSeconds(8)).build()) {
            ExecutorService pool = Executors.newFixedThreadPool(writers);
            AtomicLong saves = new AtomicLong();
            CountDownLatch end = new CountDownLatch(1);
            List<Future<Integer>> all = new ArrayList<>();
            for (int at = 0; at < writers; at += 1) {
                String session = "s" + at;
                all.add(pool.submit(() -> {
                    TreeholdAgentStateStore states = new TreeholdAgentStateStore(client);
                    int unknown = 0;
                    long acknowledged = 0;
                    long next = 1;
                    while (end.getCount() > 0) {
                        try {
                            states.save("ada", session, "k", next);
                            acknowledged = next;
                            saves.incrementAndGet();
                        } catch (TreeholdException open) {
                            // The server died during this save. What is stored is this value or the one before.
                            Check.isTrue(open.mayHaveEffect(), "an open outcome may have an effect: " + open);
                            long stored = states.get("ada", session, "k", Long.class).orElse(0L);
                            Check.isTrue(stored == acknowledged || stored == next, session + " has " + stored + ", not " + next);
                            acknowledged = stored;
                            unknown += 1;
                        }
                        next += 1;
                    }
                    Check.equal(Optional.of(acknowledged).filter(value -> value > 0), states.get("ada", session, "k", Long.class), session);
                    return unknown;
                }));
            }
            for (int kill = 0; kill < kills; kill += 1) {
                long goal = saves.get() + 40;
                while (saves.get() < goal && all.stream().noneMatch(Future::isDone)) {
                    Thread.onSpinWait();
                    Thread.yield();
                }
                served.kill();
                served.start();
            }
            end.countDown();
            for (Future<Integer> one : all) {
                one.get();
            }
            pool.shutdown();
            Check.isTrue(saves.get() >= 40L * kills, "too few saves: " + saves);
        }
    }
}
