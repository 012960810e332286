package dev.treehold.client;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Writers of one state at a time, and what the policies do. */
final class ConflictTest {
    private static final StateCodec<Json> CODEC = StateCodecs.json().codec(Json.class);

    private static Json state(String permissions, Object... messages) {
        return Json.from(Map.of("permission_context", permissions, "context", List.of(messages), "kept", 1.5));
    }

    private static List<?> context(Json state) {
        return (List<?>) ((Json.Obj) state).get("context").orElseThrow().plain();
    }

    @Test
    void eight_threads_of_compare_and_set_lose_nothing() throws Exception {
        int threads = 8;
        int rounds = 25;
        String agent = World.fresh("agent");
        CyclicBarrier start = new CyclicBarrier(threads);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<List<Long>>> all = new ArrayList<>();
        for (int at = 0; at < threads; at += 1) {
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), agent, StateCodecs.json());
            all.add(pool.submit(() -> {
                List<Long> versions = new ArrayList<>();
                start.await();
                while (versions.size() < rounds) {
                    VersionedState<Long> seen = states.getVersioned("ada", "s", "k", Long.class);
                    long next = seen.isPresent() ? seen.value() + 1 : 1;
                    long version = states.saveIfVersion("ada", "s", "k", next, seen.version());
                    if (version != AgentStateStore.UNVERSIONED) {
                        Check.equal(next, version);
                        versions.add(version);
                    }
                }
                return versions;
            }));
        }
        List<Long> versions = new ArrayList<>();
        for (Future<List<Long>> one : all) {
            versions.addAll(one.get());
        }
        pool.shutdown();
        Check.equal((long) threads * rounds, versions.stream().distinct().count(), "two saves got one version");
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), agent, StateCodecs.json());
        Check.equal(Optional.of((long) threads * rounds), states.get("ada", "s", "k", Long.class));
    }

    @Test
    void unconditional_saves_each_get_a_version_of_their_own() throws Exception {
        int threads = 8;
        String agent = World.fresh("agent");
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Callable<Map.Entry<Long, Long>>> saves = new ArrayList<>();
        for (long at = 0; at < 80; at += 1) {
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), agent, StateCodecs.json());
            long value = at;
            saves.add(() -> Map.entry(states.save("ada", "s", "k", value), value));
        }
        List<Map.Entry<Long, Long>> saved = new ArrayList<>();
        for (Future<Map.Entry<Long, Long>> one : pool.invokeAll(saves)) {
            saved.add(one.get());
        }
        pool.shutdown();
        Check.equal(80L, saved.stream().map(Map.Entry::getKey).distinct().count(), "two saves got one version");
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), agent, StateCodecs.json());
        VersionedState<Long> last = states.getVersioned("ada", "s", "k", Long.class);
        Check.isTrue(saved.contains(Map.entry(last.version(), last.value())), "the last version is of another value");
    }

    @Test
    void policy_decides_what_a_conflict_does() throws Exception {
        for (ConflictPolicy policy : ConflictPolicy.values()) {
            TreeholdAgentStateStore states = World.states();
            StateSaver<Json> saver = new StateSaver<>(states, CODEC, policy);
            StateSaver.Loaded<Json> none = saver.load("ada", "s", "agent_state");
            Check.equal(null, none.value());
            Check.equal(0L, none.version());
            saver.save(none, state("old", "a"));
            StateSaver.Loaded<Json> loaded = saver.load("ada", "s", "agent_state");
            Check.equal(0L, saver.conflicts());
            states.save("ada", "s", "agent_state", state("other", "a", "theirs"));
            Json mine = state("mine", "a", "mine 1", "mine 2");
            switch (policy) {
                case OVERWRITE -> {
                    Check.equal(3L, saver.save(loaded, mine).version());
                    Check.equal(Optional.of(mine), states.get("ada", "s", "agent_state", Json.class));
                }
                case FAIL -> {
                    ConcurrentSessionModificationException thrown =
                            Check.fails(ConcurrentSessionModificationException.class, () -> saver.save(loaded, mine));
                    Check.equal("Concurrent modification of session state"
                            + " (userId=ada, sessionId=s, key=agent_state, expectedVersion=1)", thrown.getMessage());
                    Check.equal(List.of("ada", "s", "agent_state", 1L),
                            List.of(thrown.getUserId(), thrown.getSessionId(), thrown.getKey(), thrown.getExpectedVersion()));
                    Check.equal(2L, states.getVersioned("ada", "s", "agent_state", Json.class).version());
                }
                case APPEND_MERGE -> {
                    StateSaver.Loaded<Json> merged = saver.save(loaded, mine);
                    Check.equal(3L, merged.version());
                    Check.equal(List.of("a", "theirs", "mine 1", "mine 2"), context(merged.value()));
                    Json stored = states.get("ada", "s", "agent_state", Json.class).orElseThrow();
                    Check.equal(merged.value(), stored);
                    Check.equal(Optional.of(Json.of("mine")), ((Json.Obj) stored).get("permission_context"));
                    // The next step of the call goes on from the merged state.
                    Json next = state("mine", "a", "theirs", "mine 1", "mine 2", "mine 3");
                    Check.equal(4L, saver.save(merged, next).version());
                }
            }
            Check.equal(1L, saver.conflicts(), policy.name());
        }
        Check.equal("Concurrent modification of session state (userId=null, sessionId=s, key=k, expectedVersion=0)",
                new ConcurrentSessionModificationException(null, "s", "k", 0).getMessage());
    }

    @Test
    void merge_of_a_call_that_rewrote_its_messages_is_refused() throws Exception {
        for (Json rewritten : List.of(state("p", "b", "c"), state("p"), state("p", "a"), Json.of(1), Json.from(Map.of("context", 1)))) {
            TreeholdAgentStateStore states = World.states();
            StateSaver<Json> saver = new StateSaver<>(states, CODEC, ConflictPolicy.APPEND_MERGE);
            states.save("ada", "s", "agent_state", state("p", "a", "b"));
            StateSaver.Loaded<Json> loaded = saver.load("ada", "s", "agent_state");
            Json theirs = state("p", "a", "b", "theirs");
            states.save("ada", "s", "agent_state", theirs);
            Check.fails(ConcurrentSessionModificationException.class, rewritten.toString(), () -> saver.save(loaded, rewritten));
            Check.equal(Optional.of(theirs), states.get("ada", "s", "agent_state", Json.class));
        }
    }

    @Test
    void merge_after_a_deletion_is_refused() throws Exception {
        TreeholdAgentStateStore states = World.states();
        StateSaver<Json> saver = new StateSaver<>(states, CODEC, ConflictPolicy.APPEND_MERGE);
        states.save("ada", "s", "agent_state", state("p", "forgotten"));
        StateSaver.Loaded<Json> loaded = saver.load("ada", "s", "agent_state");
        states.delete("ada", "s");
        ConcurrentSessionModificationException thrown =
                Check.fails(ConcurrentSessionModificationException.class, () -> saver.save(loaded, state("mine", "forgotten", "new")));
        Check.equal(1L, thrown.getExpectedVersion());
        Check.isTrue(!states.exists("ada", "s"), "a deleted session came back");
        // A call that began before there was a state, and lost the race to create it, merges.
        StateSaver.Loaded<Json> none = saver.load("ada", "s", "agent_state");
        states.save("ada", "s", "agent_state", state("p", "theirs"));
        Check.equal(List.of("theirs", "mine"), context(saver.save(none, state("p", "mine")).value()));
    }

    @Test
    void merge_is_tried_once() throws Exception {
        TreeholdAgentStateStore states = World.states();
        // Another writer is faster each time.
        AgentStateStore contended = new Forwarding(states) {
            @Override
            public long saveIfVersion(String userId, String sessionId, String key, Object value, long expectedVersion) {
                states.save(userId, sessionId, key, state("p", "a", "theirs"));
                return super.saveIfVersion(userId, sessionId, key, value, expectedVersion);
            }
        };
        StateSaver<Json> saver = new StateSaver<>(contended, CODEC, ConflictPolicy.APPEND_MERGE);
        states.save("ada", "s", "agent_state", state("p", "a"));
        StateSaver.Loaded<Json> loaded = saver.load("ada", "s", "agent_state");
        ConcurrentSessionModificationException thrown =
                Check.fails(ConcurrentSessionModificationException.class, () -> saver.save(loaded, state("p", "a", "mine")));
        Check.equal(2L, thrown.getExpectedVersion());
        Check.equal(3L, states.getVersioned("ada", "s", "agent_state", Json.class).version());
        Check.equal(1L, saver.conflicts());
    }

    @Test
    void failed_load_fails_and_touches_nothing() throws Exception {
        TreeholdAgentStateStore states = World.states();
        states.save("ada", "s", "agent_state", new JsonText("{\"a\":1,\"a\":2}"));
        for (ConflictPolicy policy : ConflictPolicy.values()) {
            Check.fails(TreeholdException.Corrupt.class, () -> new StateSaver<>(states, CODEC, policy).load("ada", "s", "agent_state"));
        }
        Check.equal(1L, states.getVersioned("ada", "s", "agent_state", JsonText.class).version());
    }

    @Test
    void store_without_versions_is_overwritten_by_every_policy() throws Exception {
        TreeholdAgentStateStore states = World.states();
        AgentStateStore plain = new Forwarding(states) {
            @Override
            public boolean supportsVersioning() {
                return false;
            }

            @Override
            public <T> VersionedState<T> getVersioned(String userId, String sessionId, String key, Class<T> type) {
                return new VersionedState<>(super.getVersioned(userId, sessionId, key, type).value(), UNVERSIONED);
            }

            @Override
            public long saveIfVersion(String userId, String sessionId, String key, Object value, long expectedVersion) {
                save(userId, sessionId, key, value);
                return UNVERSIONED;
            }
        };
        for (ConflictPolicy policy : ConflictPolicy.values()) {
            StateSaver<Json> saver = new StateSaver<>(plain, CODEC, policy);
            StateSaver.Loaded<Json> loaded = saver.load("ada", "s", policy.name());
            states.save("ada", "s", policy.name(), state("other"));
            Check.equal(AgentStateStore.UNVERSIONED, saver.save(loaded, state("mine", policy.name())).version());
            Check.equal(List.of(policy.name()), context(states.get("ada", "s", policy.name(), Json.class).orElseThrow()));
            Check.equal(0L, saver.conflicts());
        }
    }

    @Test
    void eight_writers_merge_all_their_messages() throws Exception {
        int writers = 8;
        String agent = World.fresh("agent");
        ExecutorService pool = Executors.newFixedThreadPool(writers);
        CountDownLatch loaded = new CountDownLatch(writers);
        List<Future<Integer>> all = new ArrayList<>();
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), agent, StateCodecs.json());
        states.save("ada", "s", "agent_state", state("p", "start"));
        for (int at = 0; at < writers; at += 1) {
            String message = "message " + at;
            all.add(pool.submit(() -> {
                StateSaver<Json> saver = new StateSaver<>(states, CODEC, ConflictPolicy.APPEND_MERGE);
                StateSaver.Loaded<Json> seen = saver.load("ada", "s", "agent_state");
                loaded.countDown();
                loaded.await();
                Json mine = state("p", "start", message);
                for (int attempt = 1; ; attempt += 1) {
                    try {
                        saver.save(seen, mine);
                        return attempt;
                    } catch (ConcurrentSessionModificationException lost) {
                        Check.equal("agent_state", lost.getKey());
                    }
                }
            }));
        }
        for (Future<Integer> one : all) {
            one.get();
        }
        pool.shutdown();
        Json stored = states.get("ada", "s", "agent_state", Json.class).orElseThrow();
        Check.equal(writers + 1, context(stored).size());
        Check.equal((long) writers + 1, context(stored).stream().distinct().count());
    }

    /** A wrapper: it has no default bodies to forget. */
    private static class Forwarding implements AgentStateStore {
        private final AgentStateStore inner;

        Forwarding(AgentStateStore inner) {
            this.inner = inner;
        }

        @Override
        public long save(String userId, String sessionId, String key, Object value) {
            return inner.save(userId, sessionId, key, value);
        }

        @Override
        public long save(String userId, String sessionId, String key, List<?> values) {
            return inner.save(userId, sessionId, key, values);
        }

        @Override
        public <T> Optional<T> get(String userId, String sessionId, String key, Class<T> type) {
            return inner.get(userId, sessionId, key, type);
        }

        @Override
        public <T> List<T> getList(String userId, String sessionId, String key, Class<T> itemType) {
            return inner.getList(userId, sessionId, key, itemType);
        }

        @Override
        public boolean exists(String userId, String sessionId) {
            return inner.exists(userId, sessionId);
        }

        @Override
        public void delete(String userId, String sessionId) {
            inner.delete(userId, sessionId);
        }

        @Override
        public void delete(String userId, String sessionId, String key) {
            inner.delete(userId, sessionId, key);
        }

        @Override
        public java.util.Set<String> listSessionIds(String userId) {
            return inner.listSessionIds(userId);
        }

        @Override
        public boolean supportsVersioning() {
            return inner.supportsVersioning();
        }

        @Override
        public <T> VersionedState<T> getVersioned(String userId, String sessionId, String key, Class<T> type) {
            return inner.getVersioned(userId, sessionId, key, type);
        }

        @Override
        public long saveIfVersion(String userId, String sessionId, String key, Object value, long expectedVersion) {
            return inner.saveIfVersion(userId, sessionId, key, value, expectedVersion);
        }

        @Override
        public boolean deleteIfVersion(String userId, String sessionId, String key, long expectedVersion) {
            return inner.deleteIfVersion(userId, sessionId, key, expectedVersion);
        }

        @Override
        public void close() {
            inner.close();
        }
    }
}
