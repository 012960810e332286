package dev.treehold.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** The operations of the state store, against a real server. */
final class StateStoreTest {
    /** A state of the caller's own class, with a codec of its own. */
    record Counter(long count, String note) {
        static final StateCodec<Counter> CODEC = new StateCodec<>() {
            @Override
            public String encode(Counter value) {
                return Json.from(Map.of("count", value.count, "note", value.note)).toText();
            }

            @Override
            public Counter decode(String json) {
                Json.Obj fields = (Json.Obj) Json.parse(json);
                return new Counter((Long) fields.members().get("count").plain(), (String) fields.members().get("note").plain());
            }
        };
    }

    @Test
    void value_comes_back_byte_for_byte() throws Exception {
        TreeholdAgentStateStore states = World.states();
        for (String text : List.of("{ \"z\" : 1.0,\t\"a\":1e2, \"unknown\": {\"k\\u0069nd\": []} }",
                "\"\\ud83c\\udf75 \ud83c\udf75 \u2028\"",
                "12345678901234567890123", "null", "[ ]", "{\"a\":1,\"a\":2}", "\"" + "x".repeat(1 << 20) + "\"")) {
            JsonText value = new JsonText(text);
            states.save("ada", "s", "k", value);
            Check.equal(Optional.of(value), states.get("ada", "s", "k", JsonText.class));
            states.save("ada", "s", "k", List.of(value, new JsonText("1"), value));
            Check.equal(List.of(value, new JsonText("1"), value), states.getList("ada", "s", "k", JsonText.class));
        }
    }

    @Test
    void absent_values_are_empty_and_have_version_0() throws Exception {
        TreeholdAgentStateStore states = World.states();
        Check.equal(Optional.empty(), states.get("ada", "s", "k", Json.class));
        Check.equal(new VersionedState<Json>(null, 0), states.getVersioned("ada", "s", "k", Json.class));
        Check.isTrue(!states.getVersioned("ada", "s", "k", Json.class).isPresent(), "an absent value is present");
        Check.equal(List.of(), states.getList("ada", "s", "k", Json.class));
        Check.equal(List.of(), states.keys("ada", "s"));
        Check.equal(Set.of(), states.listSessionIds("ada"));
        Check.isTrue(!states.exists("ada", "s"), "an absent session exists");
        states.delete("ada", "s");
        states.delete("ada", "s", "k");
        Check.fails(TreeholdException.NotFound.class, () -> states.export("ada", "s"));
        Check.isTrue(states.supportsVersioning(), "the server has versions");
    }

    @Test
    void expected_versions_are_0_for_none_and_minus_1_for_any() throws Exception {
        TreeholdAgentStateStore states = World.states();
        Json value = Json.of(1);
        Check.equal(AgentStateStore.UNVERSIONED, states.saveIfVersion("ada", "s", "k", value, 1));
        Check.isTrue(!states.exists("ada", "s"), "a refused save left something");
        Check.equal(1L, states.saveIfVersion("ada", "s", "k", value, 0));
        Check.equal(AgentStateStore.UNVERSIONED, states.saveIfVersion("ada", "s", "k", Json.of(2), 0));
        Check.equal(2L, states.saveIfVersion("ada", "s", "k", value, 1));
        Check.equal(AgentStateStore.UNVERSIONED, states.saveIfVersion("ada", "s", "k", Json.of(2), 1));
        Check.equal(AgentStateStore.UNVERSIONED, states.saveIfVersion("ada", "s", "k", Json.of(2), 3));
        Check.equal(new VersionedState<>(value, 2), states.getVersioned("ada", "s", "k", Json.class));
        Check.equal(3L, states.saveIfVersion("ada", "s", "k", value, AgentStateStore.UNVERSIONED));
        Check.equal(4L, states.save("ada", "s", "k", value));
        Check.equal(List.of(new StateKey("k", StateKey.Form.SINGLE, 4)), states.keys("ada", "s"));
    }

    @Test
    void removal_of_another_version_removes_nothing_and_one_of_this_version_leaves_the_list() throws Exception {
        TreeholdAgentStateStore states = World.states();
        Check.isTrue(!states.deleteIfVersion("ada", "s", "k", 1), "there is no value");
        states.save("ada", "s", "k", List.of("item"));
        states.save("ada", "s", "k", Json.of(1));
        Check.equal(2L, states.save("ada", "s", "k", Json.of(2)));
        for (long other : new long[] {1, 3}) {
            Check.isTrue(!states.deleteIfVersion("ada", "s", "k", other), "version " + other + " is not stored");
            Check.equal(new VersionedState<>(Json.of(2), 2), states.getVersioned("ada", "s", "k", Json.class));
        }
        for (long wrong : new long[] {0, -2}) {
            Check.fails(IllegalArgumentException.class, () -> states.deleteIfVersion("ada", "s", "k", wrong));
        }
        Check.isTrue(states.deleteIfVersion("ada", "s", "k", 2), "the version is stored");
        Check.equal(Optional.empty(), states.get("ada", "s", "k", Json.class));
        Check.equal(List.of("item"), states.getList("ada", "s", "k", String.class));
        Check.equal(3L, states.save("ada", "s", "k", Json.of(3)));
        Check.isTrue(states.deleteIfVersion("ada", "s", "k", AgentStateStore.UNVERSIONED), "any version");
        Check.equal(1, states.keys("ada", "s").size());
    }

    @Test
    void empty_list_replaces_the_stored_one() throws Exception {
        TreeholdAgentStateStore states = World.states();
        states.save("ada", "s", "k", List.of(1, 2, 3));
        Check.equal(List.of(1L, 2L, 3L), states.getList("ada", "s", "k", Long.class));
        states.save("ada", "s", "k", List.of());
        Check.equal(List.of(), states.getList("ada", "s", "k", Long.class));
        List<Integer> shorter = List.of(9);
        states.save("ada", "s", "k", shorter);
        Check.equal(List.of(9L), states.getList("ada", "s", "k", Long.class));
    }

    @Test
    void single_value_and_list_of_one_key_are_separate() throws Exception {
        TreeholdAgentStateStore states = World.states();
        states.save("ada", "s", "k", Json.of("single"));
        states.save("ada", "s", "k", List.of("item"));
        Check.equal(Optional.of("single"), states.get("ada", "s", "k", String.class));
        Check.equal(List.of("item"), states.getList("ada", "s", "k", String.class));
        Check.equal(2, states.keys("ada", "s").size());
        states.delete("ada", "s", "k");
        Check.equal(List.of(), states.keys("ada", "s"));
    }

    @Test
    void values_of_own_classes_go_through_their_codec() throws Exception {
        TreeholdAgentStateStore states =
                new TreeholdAgentStateStore(World.client(), World.fresh("agent"), StateCodecs.json().with(Counter.class, Counter.CODEC));
        Counter counter = new Counter(7, "é\ud83c\udf75");
        Check.equal(1L, states.save("ada", "s", "k", counter));
        Check.equal(Optional.of(counter), states.get("ada", "s", "k", Counter.class));
        states.save("ada", "s", "k", List.of(counter, counter));
        Check.equal(List.of(counter, counter), states.getList("ada", "s", "k", Counter.class));
        Check.equal(Optional.of(Map.of("count", 7L, "note", counter.note)), states.get("ada", "s", "k", Map.class));
    }

    @Test
    void state_that_the_codec_cannot_read_is_corrupt_and_stays() throws Exception {
        StateCodecs codecs = StateCodecs.json().with(Counter.class, Counter.CODEC);
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(World.client(), World.fresh("agent"), codecs);
        for (String text : List.of("{\"count\":\"x\"}", "7", "{}", "null")) {
            states.save("ada", "s", "k", new JsonText(text));
            states.save("ada", "s", "k", List.of(new JsonText(text)));
            TreeholdException.Corrupt thrown =
                    Check.fails(TreeholdException.Corrupt.class, text, () -> states.get("ada", "s", "k", Counter.class));
            Check.isTrue(thrown.getCause() != null, "the codec's error is lost");
            Check.fails(TreeholdException.Corrupt.class, text, () -> states.getVersioned("ada", "s", "k", Counter.class));
            Check.fails(TreeholdException.Corrupt.class, text, () -> states.getList("ada", "s", "k", Counter.class));
            Check.equal(Optional.of(new JsonText(text)), states.get("ada", "s", "k", JsonText.class));
        }
        StateCodecs nothing = StateCodecs.json().with(Counter.class, new StateCodec<>() {
            @Override
            public String encode(Counter value) {
                return "1,2";
            }

            @Override
            public Counter decode(String json) {
                return null;
            }
        });
        TreeholdAgentStateStore broken = new TreeholdAgentStateStore(World.client(), World.fresh("agent"), nothing);
        broken.save("ada", "s", "k", Json.of(1));
        Check.fails(TreeholdException.Corrupt.class, () -> broken.get("ada", "s", "k", Counter.class));
        Check.fails(IllegalArgumentException.class, () -> broken.save("ada", "s", "k", new Counter(1, "")));
        Check.fails(IllegalArgumentException.class, () -> broken.save("ada", "s", "k", List.of(new Counter(1, ""))));
        Check.equal(1L, broken.getVersioned("ada", "s", "k", Json.class).version());
    }

    @Test
    void values_that_are_no_json_are_refused_before_a_request() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) -> AnswerServer.answer(exchange, 200, "{}"))) {
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(TreeholdClient.builder(server.baseUrl()).build());
            List<Object> list = List.of(1);
            Object untyped = list;
            for (Object bad : new Object[] {new Object(), Double.NaN, untyped, new int[0], new JsonTextOfSurrogate()}) {
                Check.fails(IllegalArgumentException.class, bad.toString(), () -> states.save("ada", "s", "k", bad));
                Check.fails(IllegalArgumentException.class, bad.toString(), () -> states.saveIfVersion("ada", "s", "k", bad, 0));
            }
            Check.fails(NullPointerException.class, () -> states.save("ada", "s", "k", (Object) null));
            List<Object> withNull = new ArrayList<>();
            withNull.add(null);
            Check.fails(NullPointerException.class, () -> states.save("ada", "s", "k", withNull));
            // Half of a surrogate pair outside of an escape: UTF-8 would store a question mark.
            Check.fails(IllegalArgumentException.class, () -> states.save("ada", "s", "k", new JsonText("\"\ud83c\"")));
            Check.equal(List.of(), server.seen);
        }
    }

    /** A class without a JSON form. */
    private static final class JsonTextOfSurrogate {}

    @Test
    void random_operations_match_a_model() throws Exception {
        TreeholdAgentStateStore states = World.states();
        Random random = new Random(Long.getLong("seed", 1L));
        String[] users = {null, "ada", "-"};
        Map<String, Json> values = new TreeMap<>();
        Map<String, Long> versions = new TreeMap<>();
        Map<String, List<Json>> lists = new TreeMap<>();
        Map<String, Long> used = new TreeMap<>();
        for (int round = 0; round < 400; round += 1) {
            String user = users[random.nextInt(users.length)];
            String session = "s" + random.nextInt(3);
            String key = "k" + random.nextInt(2);
            String prefix = user + "\n" + session + "\n";
            String slot = prefix + key;
            Json value = Json.of(round);
            String about = "round " + round;
            switch (random.nextInt(9)) {
                case 0, 1 -> {
                    values.put(slot, value);
                    long version = states.save(user, session, key, value);
                    checkNext(versions.get(slot), used.get(slot), version, about);
                    versions.put(slot, version);
                    used.put(slot, version);
                }
                case 2, 3 -> {
                    long now = versions.getOrDefault(slot, 0L);
                    long expected = random.nextBoolean() ? now : random.nextInt(5) - 1;
                    long version = states.saveIfVersion(user, session, key, value, expected);
                    boolean isSaved = expected == -1 || expected == now;
                    if (isSaved) {
                        checkNext(versions.get(slot), used.get(slot), version, about);
                        values.put(slot, value);
                        versions.put(slot, version);
                        used.put(slot, version);
                    } else {
                        Check.equal(AgentStateStore.UNVERSIONED, version, about);
                    }
                }
                case 4 -> {
                    List<Json> list = new ArrayList<>(List.of(value, value).subList(0, random.nextInt(3)));
                    states.save(user, session, key, list);
                    lists.put(slot, list);
                }
                case 5 -> {
                    states.delete(user, session, key);
                    values.remove(slot);
                    versions.remove(slot);
                    lists.remove(slot);
                }
                case 6 -> {
                    states.delete(user, session);
                    for (Map<String, ?> map : List.of(values, versions, lists)) {
                        map.keySet().removeIf(name -> name.startsWith(prefix));
                    }
                }
                default -> { }
            }
            VersionedState<Json> found = states.getVersioned(user, session, key, Json.class);
            Check.equal(new VersionedState<>(values.get(slot), versions.getOrDefault(slot, 0L)), found, about);
            Check.equal(lists.getOrDefault(slot, List.of()), states.getList(user, session, key, Json.class), about);
            boolean exists = values.keySet().stream().anyMatch(name -> name.startsWith(prefix))
                    || lists.keySet().stream().anyMatch(name -> name.startsWith(prefix));
            Check.equal(exists, states.exists(user, session), about);
            Set<String> sessions = new TreeSet<>();
            for (Map<String, ?> map : List.of(values, lists)) {
                map.keySet().stream().map(name -> name.split("\n")).filter(parts -> parts[0].equals(String.valueOf(user)))
                        .forEach(parts -> sessions.add(parts[1]));
            }
            Check.equal(sessions, new TreeSet<>(states.listSessionIds(user)), about);
        }
    }

    /** A version is one more than the present one. After a deletion it is greater than any version that the value had before. */
    private static void checkNext(Long present, Long used, long version, String about) {
        if (present != null) {
            Check.equal(present + 1, version, about);
        } else {
            Check.isTrue(version >= 1 && (used == null || version > used), about + ": version " + version + " after " + used);
        }
    }

    @Test
    void sessions_and_users_come_by_page_in_order() throws Exception {
        TreeholdAgentStateStore states = World.states();
        Set<String> expected = new TreeSet<>();
        for (int at = 0; at < 25; at += 1) {
            states.save("ada", "s" + at, "k", Json.of(at));
            states.save("u" + at, "s", "k", Json.of(at));
            expected.add("s" + at);
        }
        List<String> seen = new ArrayList<>();
        String after = null;
        do {
            SessionIdPage page = states.sessionIds("ada", after, 4);
            Check.isTrue(page.sessions().size() <= 4, "a page is too long");
            seen.addAll(page.sessions());
            after = page.next();
        } while (after != null);
        Check.equal(new ArrayList<>(expected), seen);
        List<String> users = new ArrayList<>();
        do {
            UserPage page = states.users(after, 7);
            users.addAll(page.users());
            after = page.next();
        } while (after != null);
        Check.equal(26, users.size());
        Check.equal(26, new TreeSet<>(users).size());
        Check.fails(TreeholdException.InvalidArgument.class, () -> states.sessionIds("ada", null, 0));
    }

    @Test
    void export_has_all_values_and_the_conversation_as_markdown() throws Exception {
        TreeholdAgentStateStore states = World.states();
        Map<String, Object> message = new LinkedHashMap<>();
        message.put("id", "m1");
        message.put("name", "ada");
        message.put("role", "USER");
        message.put("content", List.of(Map.of("type", "text", "text", "Where is the tea?")));
        states.save("ada", "s", "agent_state", Map.of("session_id", "s", "user_id", "ada", "context", List.of(message)));
        states.save("ada", "s", "other", List.of(1, 2));
        Json.Obj export = (Json.Obj) states.export("ada", "s").tree();
        Check.equal(List.of("ada", "s"), List.of(export.get("user").orElseThrow().plain(), export.get("session").orElseThrow().plain()));
        Check.equal(2, ((List<?>) export.get("entries").orElseThrow().plain()).size());
        Check.isTrue(states.exportMarkdown("ada", "s").contains("Where is the tea?"), "the conversation lacks its message");
    }

    @Test
    void value_over_the_limit_of_the_server_is_too_large_and_leaves_the_stored_one() throws Exception {
        TreeholdAgentStateStore states = World.states();
        states.save("ada", "s", "k", Json.of("kept"));
        Json large = Json.of("x".repeat(80 << 20));
        Check.fails(TreeholdException.TooLarge.class, () -> states.save("ada", "s", "k", large));
        Check.equal(new VersionedState<>("kept", 1), states.getVersioned("ada", "s", "k", String.class));
    }
}
