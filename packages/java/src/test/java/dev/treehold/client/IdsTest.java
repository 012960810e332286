package dev.treehold.client;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;

/** Ids that break stores which join, trim or decode them. Each is kept exactly or refused with a typed error, by every method. */
final class IdsTest {
    static final List<String> KEPT = List.of(
            "a:b", "a/b", "/", "//", "../up", "a%2Fb", "%", "%2e%2e", "%2D", "...", " a ", "a?b=c#d&e", "a\\b", "a+b", "a;b=c",
            "日本", "\ud83c\udf75",
            "e\u0301", "\u00e9", "\ufeffa", "__proto__", "null", "-", "--", "~", "_default", "__anon__", "agent_state", ":interrupt",
            "a:interrupt", "a:export", ":", "x".repeat(255), "é".repeat(127));

    private static final List<String> REFUSED_HERE = List.of("", " ", "\t", ".", "..", "\ud83c", "a\udf75", "\ud83c\ud83c\udf75");

    private static final List<String> REFUSED_BY_THE_SERVER =
            List.of("_treehold", "a\u0000b", "a\nb", "\u007f", "\u0085", "x".repeat(256), "é".repeat(128));

    @Test
    void every_id_is_kept_as_user_session_key_and_agent() throws Exception {
        TreeholdAgentStateStore states = World.states();
        Set<String> expected = new HashSet<>();
        for (String id : KEPT) {
            String user = id;
            expected.add(id);
            Json value = Json.of(id);
            Check.equal(1L, states.saveIfVersion(user, id, id, value, 0), id);
            Check.equal(Optional.of(value), states.get(user, id, id, Json.class), id);
            states.save(user, id, id, List.of(value, id));
            Check.equal(List.of(value, value), states.getList(user, id, id, Json.class), id);
            Check.equal(Set.of(id), states.listSessionIds(user), id);
            List<StateKey> keys = states.keys(user, id);
            Check.equal(List.of(id, id), keys.stream().map(StateKey::key).toList(), id);
            Check.isTrue(states.exists(user, id), id);
            states.save(null, id, "agent_state", value);
        }
        Check.equal(expected, states.listSessionIds(null));
        Set<String> users = new HashSet<>(states.users(null, 1000).users());
        expected.add(null);
        Check.equal(expected, users);
        for (String id : KEPT) {
            Check.equal(Optional.of(Json.of(id)), states.get(id, id, id, Json.class), "after the others: " + id);
            Json export = states.export(id, id).tree();
            Check.equal(Optional.of(Json.of(id)), ((Json.Obj) export).get("user"), id);
            states.delete(id, id, id);
            Check.isTrue(!states.exists(id, id), id);
            Check.isTrue(states.exists(null, id), "the anonymous session goes with a user's: " + id);
            states.delete(null, id);
        }
        Check.equal(Set.of(), states.listSessionIds(null));
        for (String id : KEPT) {
            TreeholdAgentStateStore ofAgent = new TreeholdAgentStateStore(World.client(), id, StateCodecs.json());
            String session = World.fresh("s");
            ofAgent.save("ada", session, "k", Json.of(id));
            Check.equal(Optional.of(Json.of(id)), ofAgent.get("ada", session, "k", Json.class), id);
            Check.isTrue(!states.exists("ada", session), "an agent sees the states of another: " + id);
        }
    }

    @Test
    void every_id_is_kept_as_session_of_a_turn_and_an_interrupt() throws Exception {
        String agent = World.fresh("agent");
        TreeholdClient client = World.client();
        TreeholdTurnGate gate = TreeholdTurnGate.builder(client).agent(agent).build();
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(client, agent, StateCodecs.json());
        for (String id : KEPT) {
            for (String user : new String[] {id, null}) {
                Check.isTrue(!states.interrupt(user, id, Interrupt.byUser()), "an idle session was hit: " + id);
                try (TurnLease turn = gate.acquire(new TurnKey(user, id))) {
                    Check.equal(Optional.empty(), turn.check(), id);
                    Check.isTrue(states.interrupt(user, id, Interrupt.byUser(id)), "a running call was not hit: " + id);
                    Check.equal(Optional.of(Interrupt.byUser(id)), turn.check(), id);
                    Check.equal(1L, states.during(turn).save(user, id, "k", Json.of(id)), id);
                }
            }
        }
    }

    @Test
    void ids_that_no_url_can_hold_are_refused_by_every_method_before_a_request() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) -> AnswerServer.answer(exchange, 200, "{}"))) {
            refusedEverywhere(TreeholdClient.builder(server.baseUrl()).build(), REFUSED_HERE, IllegalArgumentException.class);
            Check.equal(List.of(), server.seen);
        }
    }

    @Test
    void ids_that_the_server_refuses_are_refused_by_every_method() throws Exception {
        refusedEverywhere(World.client(), REFUSED_BY_THE_SERVER, TreeholdException.InvalidArgument.class);
    }

    private static <E extends Throwable> void refusedEverywhere(TreeholdClient client, List<String> ids, Class<E> error) {
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(client);
        TreeholdTurnGate gate = TreeholdTurnGate.builder(client).build();
        for (String id : ids) {
            Json value = Json.of(1);
            Map<String, Check.Work> session = Map.ofEntries(
                    Map.entry("save", () -> states.save("u", id, "k", value)),
                    Map.entry("save a list", () -> states.save("u", id, "k", List.of(value))),
                    Map.entry("saveIfVersion", () -> states.saveIfVersion("u", id, "k", value, 0)),
                    Map.entry("get", () -> states.get("u", id, "k", Json.class)),
                    Map.entry("getVersioned", () -> states.getVersioned("u", id, "k", Json.class)),
                    Map.entry("getList", () -> states.getList("u", id, "k", Json.class)),
                    Map.entry("exists", () -> states.exists("u", id)),
                    Map.entry("keys", () -> states.keys("u", id)),
                    Map.entry("delete", () -> states.delete("u", id)),
                    Map.entry("delete a key", () -> states.delete("u", id, "k")),
                    Map.entry("export", () -> states.export("u", id)),
                    Map.entry("exportMarkdown", () -> states.exportMarkdown("u", id)),
                    Map.entry("interrupt", () -> states.interrupt("u", id, Interrupt.byUser())),
                    Map.entry("acquire", () -> gate.acquire(new TurnKey("u", id))),
                    Map.entry("isRunning", () -> gate.isRunning(new TurnKey("u", id))));
            session.forEach((name, work) -> Check.fails(error, name + " of the session " + Json.of(id), work));
            if (error == IllegalArgumentException.class) {
                // On the server, a key is any text.
                Map<String, Check.Work> key = Map.of(
                        "save", () -> states.save("u", "s", id, value),
                        "save a list", () -> states.save("u", "s", id, List.of(value)),
                        "saveIfVersion", () -> states.saveIfVersion("u", "s", id, value, 0),
                        "get", () -> states.get("u", "s", id, Json.class),
                        "getList", () -> states.getList("u", "s", id, Json.class),
                        "delete", () -> states.delete("u", "s", id));
                key.forEach((name, work) -> Check.fails(error, name + " of the key " + Json.of(id), work));
            }
            if (!id.isBlank()) {
                Map<String, Check.Work> user = Map.of(
                        "save", () -> states.save(id, "s", "k", value),
                        "get", () -> states.get(id, "s", "k", Json.class),
                        "getList", () -> states.getList(id, "s", "k", Json.class),
                        "exists", () -> states.exists(id, "s"),
                        "delete", () -> states.delete(id, "s"),
                        "delete a key", () -> states.delete(id, "s", "k"),
                        "interrupt", () -> states.interrupt(id, "s", Interrupt.byUser()),
                        "listSessionIds", () -> states.listSessionIds(id),
                        "acquire", () -> gate.acquire(new TurnKey(id, "s")));
                user.forEach((name, work) -> Check.fails(error, name + " of the user " + Json.of(id), work));
            }
            Check.fails(error, "the agent " + Json.of(id),
                    () -> new TreeholdAgentStateStore(client, id, StateCodecs.json()).get("u", "s", "k", Json.class));
        }
    }

    @Test
    void key_is_any_text() throws Exception {
        TreeholdAgentStateStore states = World.states();
        List<String> keys = List.of("_treehold", "a\u0000b", "a\nb", "\u007f", "\u0085", "#holder");
        for (String key : keys) {
            states.save("ada", "s", key, Json.of(key));
            states.save("ada", "s", key, List.of(key));
        }
        for (String key : keys) {
            Check.equal(Optional.of(Json.of(key)), states.get("ada", "s", key, Json.class), key);
            Check.equal(List.of(key), states.getList("ada", "s", key, String.class), key);
        }
        Check.equal(2 * keys.size(), states.keys("ada", "s").size());
        Check.fails(TreeholdException.InvalidArgument.class, () -> states.save("ada", "s", "x".repeat(5_000), Json.of(1)));
    }

    @Test
    void missing_user_is_the_anonymous_one_and_no_user_is_called_so() throws Exception {
        TreeholdAgentStateStore states = World.states();
        for (String nobody : new String[] {null, "", " ", "\t"}) {
            states.save(nobody, "s", "k", Json.of("anonymous"));
            Check.equal(Optional.of(Json.of("anonymous")), states.get(null, "s", "k", Json.class));
            Check.equal(Segments.ANONYMOUS, Segments.user(nobody));
        }
        for (String somebody : List.of("-", "__anon__", "null", "%2D", "_default")) {
            Check.equal(Optional.empty(), states.get(somebody, "s", "k", Json.class), somebody);
            Check.isTrue(!Segments.user(somebody).equals(Segments.ANONYMOUS), somebody);
        }
        Check.equal(4L, states.getVersioned(null, "s", "k", Json.class).version());
    }

    @Test
    void random_ids_become_one_segment_each_and_come_back() {
        Random random = new Random(Long.getLong("seed", 1L));
        Set<String> ids = new HashSet<>();
        Set<String> segments = new HashSet<>();
        for (int round = 0; round < 20_000; round += 1) {
            String id = JsonTest.text(random);
            String segment;
            try {
                segment = Segments.user(id);
            } catch (IllegalArgumentException refused) {
                continue;
            }
            Check.isTrue(segment.matches("([A-Za-z0-9._~-]|%[0-9A-F]{2})+") && !segment.matches("\\.\\.?"), segment);
            Check.equal(id.isBlank(), segment.equals(Segments.ANONYMOUS), id);
            if (!id.isBlank()) {
                Check.equal(id, URLDecoder.decode(segment, StandardCharsets.UTF_8));
                ids.add(id);
                segments.add(segment);
            }
        }
        Check.equal(ids.size(), segments.size(), "two users share a segment");
        Check.isTrue(ids.size() > 5_000, "too few ids were tried: " + ids.size());
    }
}
