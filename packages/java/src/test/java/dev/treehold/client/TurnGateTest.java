package dev.treehold.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/** Turns on a real server. Two clients stand for two processes: they share nothing. */
final class TurnGateTest {
    private final String agent = World.fresh("agent");

    private TreeholdTurnGate gate(Duration waitMax) throws Exception {
        return TreeholdTurnGate.builder(World.client()).agent(agent).waitMax(waitMax).renewEvery(Duration.ofMillis(50)).build();
    }

    private TreeholdTurnGate gate() throws Exception {
        return gate(Duration.ofSeconds(60));
    }

    private static final TurnKey ADA = new TurnKey("ada", "s");

    @Test
    void turn_excludes_others_until_it_is_closed() throws Exception {
        TreeholdTurnGate one = gate();
        TreeholdTurnGate two = gate();
        Check.isTrue(!one.isRunning(ADA), "nothing runs yet");
        TurnLease turn = one.acquire(ADA);
        Check.isTrue(one.isRunning(ADA) && two.isRunning(ADA), "the call runs");
        TurnBusyException busy = Check.fails(TurnBusyException.class, () -> two.acquire(ADA, Duration.ZERO));
        Check.equal(ADA, busy.key());
        Check.fails(TurnBusyException.class, () -> two.acquire(ADA, Duration.ofMillis(30)));
        // Other sessions, users and agents run in parallel.
        for (TurnKey other : List.of(new TurnKey("ada", "t"), new TurnKey("bob", "s"), new TurnKey(null, "s"))) {
            Check.isTrue(!two.isRunning(other), other.toString());
            two.acquire(other, Duration.ZERO).close();
        }
        TreeholdTurnGate.builder(World.client()).agent(World.fresh("agent")).build().acquire(ADA, Duration.ZERO).close();
        turn.close();
        turn.close();
        Check.isTrue(!two.isRunning(ADA), "the call has ended");
        try (TurnLease next = two.acquire(ADA, Duration.ZERO)) {
            Check.isTrue(next.fence() > turn.fence(), "a later turn has a greater number");
            Check.isTrue(!next.toString().contains(next.token()), "the token is said");
        }
    }

    @Test
    void two_clients_take_turns_in_order_of_arrival_and_never_overlap() throws Exception {
        int calls = 16;
        TreeholdTurnGate[] gates = {gate(), gate()};
        AtomicInteger running = new AtomicInteger();
        List<Integer> order = Collections.synchronizedList(new ArrayList<>());
        List<Long> fences = Collections.synchronizedList(new ArrayList<>());
        ExecutorService pool = Executors.newFixedThreadPool(calls);
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), agent, StateCodecs.json());
        List<Future<?>> all = new ArrayList<>();
        TurnLease first = gates[0].acquire(ADA);
        List<Integer> expected = new ArrayList<>();
        for (int at = 0; at < calls; at += 1) {
            int number = at;
            expected.add(number);
            AtomicInteger asked = new AtomicInteger();
            // A ticket has a place in the queue; each caller comes after the one before has its ticket.
            CompletableFuture<Void> queued = new CompletableFuture<>();
            TreeholdTurnGate gate = gates[at % 2];
            all.add(pool.submit(() -> {
                try (TurnLease turn = gate.acquire(ADA, Duration.ofSeconds(60), ticket -> {
                    asked.incrementAndGet();
                    queued.complete(null);
                })) {
                    Check.equal(1, running.incrementAndGet(), "two calls of a session ran at once");
                    order.add(number);
                    fences.add(turn.fence());
                    long count = states.get("ada", "s", "k", Long.class).orElse(0L);
                    states.during(turn).save("ada", "s", "k", count + 1);
                    running.decrementAndGet();
                }
                return null;
            }));
            queued.get(60, TimeUnit.SECONDS);
        }
        first.close();
        for (Future<?> one : all) {
            one.get();
        }
        pool.shutdown();
        Check.equal(expected, order);
        Check.equal(fences.stream().sorted().toList(), fences);
        Check.equal(Optional.of((long) calls), states.get("ada", "s", "k", Long.class));
    }

    @Test
    void waiter_that_gives_up_leaves_the_queue_and_wakes_nobody_early() throws Exception {
        TreeholdTurnGate gate = gate();
        TurnLease first = gate.acquire(ADA);
        CountDownLatch queued = new CountDownLatch(1);
        AtomicReference<Throwable> thrown = new AtomicReference<>();
        Thread impatient = new Thread(() -> {
            try {
                gate.acquire(ADA, Duration.ofSeconds(60), ticket -> queued.countDown());
            } catch (Throwable known) {
                thrown.set(known);
            }
        });
        impatient.start();
        queued.await();
        impatient.interrupt();
        impatient.join();
        Check.equal(InterruptedException.class, thrown.get().getClass());
        Check.fails(TurnBusyException.class, () -> gate().acquire(ADA, Duration.ofMillis(50)));
        Check.equal(Optional.empty(), first.check());
        first.close();
        // Much less than the time for which the server keeps a place.
        gate().acquire(ADA, Duration.ofSeconds(5)).close();
    }

    @Test
    void change_by_a_call_that_lost_its_turn_is_refused() throws Exception {
        TreeholdTurnGate gate = gate();
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), agent, StateCodecs.json());
        TurnLease old = gate.acquire(ADA);
        Check.equal(1L, states.during(old).save("ada", "s", "k", 1));
        old.close();
        try (TurnLease now = gate.acquire(ADA, Duration.ZERO)) {
            Check.equal(2L, states.during(now).saveIfVersion("ada", "s", "k", 2, 1));
            Check.equal(AgentStateStore.UNVERSIONED, states.during(now).saveIfVersion("ada", "s", "k", 9, 1));
            for (long expected : new long[] {-1, 2}) {
                TurnLostException lost =
                        Check.fails(TurnLostException.class, () -> states.during(old).saveIfVersion("ada", "s", "k", 3, expected));
                Check.equal(ADA, lost.key());
            }
            Check.fails(TurnLostException.class, () -> states.during(old).save("ada", "s", "k", 3));
            Check.fails(TurnLostException.class, () -> states.during(old).save("ada", "s", "k", List.of(3)));
            Check.fails(TurnLostException.class, () -> states.during(old).delete("ada", "s", "k"));
            Check.fails(TurnLostException.class, () -> states.during(old).delete("ada", "s"));
            for (long expected : new long[] {-1, 2}) {
                Check.fails(TurnLostException.class, () -> states.during(old).deleteIfVersion("ada", "s", "k", expected));
            }
            Check.isTrue(!states.during(now).deleteIfVersion("ada", "s", "k", 1), "another version is stored");
            Check.fails(IllegalArgumentException.class, () -> states.during(now).delete("bob", "s", "k"));
            Check.fails(IllegalArgumentException.class, () -> states.during(now).delete("ada", "t"));
            Check.fails(IllegalArgumentException.class, () -> states.during(now).save("bob", "s", "k", 3));
            Check.fails(IllegalArgumentException.class, () -> states.during(now).save("ada", "t", "k", 3));
        }
        Check.equal(new VersionedState<>(2L, 2), states.getVersioned("ada", "s", "k", Long.class));
        Check.equal(List.of(), states.getList("ada", "s", "k", Long.class));
        try (TurnLease now = gate.acquire(ADA, Duration.ZERO)) {
            states.during(now).save("ada", "s", "other", 1);
            Check.isTrue(states.during(now).deleteIfVersion("ada", "s", "k", 2), "the turn holds the session");
            states.during(now).delete("ada", "s", "other");
            states.during(now).save("ada", "s", "k", 1);
            states.during(now).delete("ada", "s");
        }
        Check.isTrue(!states.exists("ada", "s"), "the session was removed");
    }

    @Test
    void interrupt_reaches_the_running_call_alone() throws Exception {
        TreeholdTurnGate gate = gate();
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), agent, StateCodecs.json());
        Check.isTrue(!states.interrupt("ada", "s", Interrupt.byUser("too early")), "an idle session was hit");
        TurnKey bob = new TurnKey("bob", "s");
        try (TurnLease turn = gate.acquire(ADA); TurnLease other = gate.acquire(bob)) {
            Check.equal(Optional.empty(), turn.check());
            Json message = Json.from(List.of("any", 1, true));
            Interrupt interrupt = new Interrupt(message, Interrupt.Source.SYSTEM);
            Check.isTrue(states.interrupt("ada", "s", interrupt), "the call was not hit");
            // The renewal in the background finds it too.
            Check.equal(interrupt, turn.whenInterrupted().toCompletableFuture().get(60, TimeUnit.SECONDS));
            Check.equal(Optional.of(interrupt), turn.interrupt());
            Check.equal(Optional.of(interrupt), turn.check());
            Check.equal(Optional.empty(), other.check());
        }
        try (TurnLease next = gate.acquire(ADA)) {
            Check.equal(Optional.empty(), next.check(), "an interrupt outlived its call");
        }
    }

    @Test
    void lost_turn_is_reported_by_the_renewal_and_by_check() throws Exception {
        AtomicInteger renewals = new AtomicInteger();
        try (AnswerServer server = new AnswerServer((exchange, number) -> {
            String path = exchange.getRequestURI().getPath();
            if (path.endsWith(":acquire")) {
                AnswerServer.answer(exchange, 200, "{\"token\":\"secret-token\",\"fence\":5,\"expires_at\":1}");
            } else if (renewals.incrementAndGet() < 3) {
                AnswerServer.answer(exchange, 200, "{\"expires_at\":1,\"interrupt\":null}");
            } else {
                AnswerServer.problem(exchange, 409, "conflict");
            }
        })) {
            TreeholdClient client = TreeholdClient.builder(server.baseUrl()).build();
            TurnLease turn = TreeholdTurnGate.builder(client).renewEvery(Duration.ofMillis(5)).build().acquire(ADA);
            turn.whenLost().toCompletableFuture().get(60, TimeUnit.SECONDS);
            Check.isTrue(turn.isLost(), "the turn is lost");
            Check.fails(TurnLostException.class, turn::check);
            Check.equal(5L, turn.fence());
            turn.close();
            Check.isTrue(server.seen.stream().noneMatch(seen -> seen.target().endsWith(":release")), "a lost turn was released");
            client.close();
        }
    }

    @Test
    void renewal_goes_on_while_the_server_does_not_answer() throws Exception {
        AtomicInteger renewals = new AtomicInteger();
        CountDownLatch renewed = new CountDownLatch(1);
        try (AnswerServer server = new AnswerServer((exchange, number) -> {
            String path = exchange.getRequestURI().getPath();
            if (path.endsWith(":acquire")) {
                AnswerServer.answer(exchange, 200, "{\"token\":\"t\",\"fence\":5,\"expires_at\":1}");
            } else if (path.endsWith(":release")) {
                AnswerServer.answer(exchange, 204, "");
            } else if (renewals.incrementAndGet() < 6) {
                AnswerServer.answer(exchange, 500, "");
            } else {
                AnswerServer.answer(exchange, 200, "{\"expires_at\":1,\"interrupt\":null}");
                renewed.countDown();
            }
        })) {
            TreeholdClient client = TreeholdClient.builder(server.baseUrl()).build();
            try (TurnLease turn = TreeholdTurnGate.builder(client).renewEvery(Duration.ofMillis(5)).build().acquire(ADA)) {
                renewed.await();
                Check.isTrue(!turn.isLost(), "a fault of the server counted as a loss");
            }
            client.close();
        }
    }

    @Test
    void gate_never_gives_a_turn_without_the_server() throws Exception {
        try (ServedStore served = new ServedStore().start()) {
            TreeholdClient client = TreeholdClient.builder(served.baseUrl())
                    .attemptsMax(3).pauses(Duration.ofMillis(1), Duration.ofMillis(2)).build();
            TreeholdTurnGate gate = TreeholdTurnGate.builder(client).build();
            gate.acquire(ADA).close();
            served.kill();
            Check.fails(TreeholdException.Unavailable.class, () -> gate.acquire(ADA, Duration.ZERO));
            Check.fails(TreeholdException.Unavailable.class, () -> gate.isRunning(ADA));
            served.start();
            gate.acquire(ADA, Duration.ZERO).close();
        }
    }

    @Test
    void turn_outlives_a_restart_of_the_server() throws Exception {
        try (ServedStore served = new ServedStore().start(); TreeholdClient client = World.patient(served.baseUrl()).build()) {
            TreeholdTurnGate gate = TreeholdTurnGate.builder(client).build();
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(client);
            try (TurnLease turn = gate.acquire(ADA)) {
                states.during(turn).save("ada", "s", "k", 1);
                served.kill();
                served.start();
                Check.equal(Optional.empty(), turn.check());
                Check.fails(TurnBusyException.class, () -> gate.acquire(ADA, Duration.ZERO));
                Check.equal(2L, states.during(turn).save("ada", "s", "k", 2));
            }
            gate.acquire(ADA, Duration.ZERO).close();
        }
    }

    @Test
    void closed_client_frees_a_turn_that_it_could_not_renew() throws Exception {
        TreeholdClient client = World.client();
        client.close();
        TreeholdTurnGate closed = TreeholdTurnGate.builder(client).agent(agent).build();
        Check.fails(TreeholdException.Unavailable.class, () -> closed.acquire(ADA));
        gate().acquire(ADA, Duration.ZERO).close();
    }

    @Test
    void options_outside_their_range_are_refused() throws Exception {
        TreeholdTurnGate.Builder builder = TreeholdTurnGate.builder(World.client());
        for (Duration bad : List.of(Duration.ofMillis(-1), Duration.ofDays(2))) {
            Check.fails(IllegalArgumentException.class, () -> builder.waitMax(bad));
            Check.fails(IllegalArgumentException.class, () -> builder.build().acquire(ADA, bad));
        }
        for (Duration bad : List.of(Duration.ZERO, Duration.ofMillis(-1), Duration.ofSeconds(21))) {
            Check.fails(IllegalArgumentException.class, () -> builder.renewEvery(bad));
        }
    }
}
