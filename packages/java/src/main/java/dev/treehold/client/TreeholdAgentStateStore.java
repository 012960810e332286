package dev.treehold.client;

import dev.treehold.client.TreeholdException.Facts;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;

/**
 * The states of one agent on a treehold server. All processes that use the server see the same states, and a value stays as it was
 * saved, byte for byte.
 *
 * <pre>{@code
 * try (TreeholdClient client = TreeholdClient.builder("http://127.0.0.1:8080").build()) {
 *     StateCodecs codecs = StateCodecs.of(mapper::writeValueAsString, mapper::readValue);
 *     AgentStateStore states = new TreeholdAgentStateStore(client, "default", codecs);
 *     long version = states.save("ada", "s1", "agent_state", state);
 *     long next = states.saveIfVersion("ada", "s1", "agent_state", changed, version);
 * }
 * }</pre>
 *
 * <p>All methods throw {@link TreeholdException} if a request fails.
 */
public final class TreeholdAgentStateStore implements AgentStateStore {
    /** The agent whose states a store keeps by default. */
    public static final String DEFAULT_AGENT = "default";

    /** How many sessions {@link #listSessionIds} returns at most. */
    public static final int SESSIONS_MAX = 100_000;

    private static final int PAGE = 1_000;

    private final TreeholdClient client;
    private final String agent;
    private final StateCodecs codecs;
    private final TurnLease turn;

    /**
     * Opens the states of the agent {@link #DEFAULT_AGENT}, as JSON values.
     *
     * @param client the connection, which the caller closes
     */
    public TreeholdAgentStateStore(TreeholdClient client) {
        this(client, DEFAULT_AGENT, StateCodecs.json());
    }

    /**
     * Opens the states of an agent.
     *
     * @param client the connection, which the caller closes
     * @param agent the id of the agent
     * @param codecs convert the values to JSON and back
     */
    public TreeholdAgentStateStore(TreeholdClient client, String agent, StateCodecs codecs) {
        this(client, agent, codecs, null);
    }

    private TreeholdAgentStateStore(TreeholdClient client, String agent, StateCodecs codecs, TurnLease turn) {
        this.client = Objects.requireNonNull(client, "client");
        Segments.id("agent", agent);
        this.agent = agent;
        this.codecs = Objects.requireNonNull(codecs, "codecs");
        this.turn = turn;
    }

    /**
     * Returns these states for use during a turn. Its saves and removals are refused with {@link TurnLostException} once the turn is
     * lost, so a process that stood still cannot overwrite or remove what its successor saved.
     *
     * @param lease the turn; it must be of the session that is changed
     * @return the same states
     */
    public TreeholdAgentStateStore during(TurnLease lease) {
        return new TreeholdAgentStateStore(client, agent, codecs, Objects.requireNonNull(lease, "lease"));
    }

    @Override
    public long save(String userId, String sessionId, String key, Object value) {
        return put(userId, sessionId, key, StateKey.Form.SINGLE, encode(value), UNVERSIONED);
    }

    @Override
    public long save(String userId, String sessionId, String key, List<?> values) {
        return put(userId, sessionId, key, StateKey.Form.LIST, encodeList(values), UNVERSIONED);
    }

    @Override
    public long saveIfVersion(String userId, String sessionId, String key, Object value, long expectedVersion) {
        return put(userId, sessionId, key, StateKey.Form.SINGLE, encode(value), expectedVersion);
    }

    @Override
    public <T> Optional<T> get(String userId, String sessionId, String key, Class<T> type) {
        return Optional.ofNullable(getVersioned(userId, sessionId, key, type).value());
    }

    @Override
    public <T> VersionedState<T> getVersioned(String userId, String sessionId, String key, Class<T> type) {
        StateCodec<T> codec = Codecs.of(codecs, type);
        return read(userId, sessionId, key)
                .map(answer -> new VersionedState<>(Codecs.decode(codec, answer.request(), answer.text()), answer.tag()))
                .orElseGet(() -> new VersionedState<>(null, 0));
    }

    @Override
    public <T> List<T> getList(String userId, String sessionId, String key, Class<T> itemType) {
        StateCodec<T> codec = Codecs.of(codecs, itemType);
        Answer answer = client.send(at(Call.get(path(userId, sessionId, key))).with("form", "list"));
        List<String> items;
        try {
            items = new JsonReader(answer.text()).items();
        } catch (JsonSyntaxException cause) {
            throw answer.unreadable("is not a JSON array", cause);
        }
        List<T> values = new ArrayList<>(items.size());
        items.forEach(item -> values.add(Codecs.decode(codec, answer.request(), item)));
        return values;
    }

    @Override
    public boolean exists(String userId, String sessionId) {
        return !keys(userId, sessionId).isEmpty();
    }

    @Override
    public void delete(String userId, String sessionId) {
        remove(userId, sessionId, Call.change("DELETE", path(userId, sessionId)), UNVERSIONED);
    }

    @Override
    public void delete(String userId, String sessionId, String key) {
        remove(userId, sessionId, Call.change("DELETE", path(userId, sessionId, key)), UNVERSIONED);
    }

    @Override
    public boolean deleteIfVersion(String userId, String sessionId, String key, long expectedVersion) {
        if (expectedVersion == 0) {
            throw new IllegalArgumentException("the expected version is 0, which is that of no value; there is nothing to remove");
        }
        Call call = Call.change("DELETE", path(userId, sessionId, key)).with("form", "single");
        return remove(userId, sessionId, call, expectedVersion);
    }

    /**
     * {@inheritDoc}
     *
     * @throws TreeholdException.TooLarge if there are more than {@link #SESSIONS_MAX}; read them by {@link #sessionIds}
     */
    @Override
    public Set<String> listSessionIds(String userId) {
        Set<String> ids = new LinkedHashSet<>();
        String after = null;
        do {
            SessionIdPage page = sessionIds(userId, after, PAGE);
            ids.addAll(page.sessions());
            if (ids.size() > SESSIONS_MAX) {
                String message = "the user has more than " + SESSIONS_MAX + " sessions; read them by page with `sessionIds`";
                throw TreeholdException.of(new Facts("too_large", message));
            }
            after = page.next();
        } while (after != null);
        return ids;
    }

    /**
     * Returns a page of the sessions of a user.
     *
     * @param userId the user; null for the anonymous sessions
     * @param after the {@code next} of the page before; null for the first page
     * @param limit how many at most
     * @return the page
     */
    public SessionIdPage sessionIds(String userId, String after, int limit) {
        Answer answer = client.send(at(Call.get("/v1/state/" + Segments.user(userId))).with("after", after).with("limit", limit));
        Json.Obj page = answer.object();
        List<String> ids = new ArrayList<>();
        for (Json id : answer.array(page, "sessions").items()) {
            if (!(id instanceof Json.Str text)) {
                throw answer.unreadable("has a session that is not a string", null);
            }
            ids.add(text.value());
        }
        return new SessionIdPage(ids, answer.next(page, after));
    }

    /**
     * Returns a page of the users that have states, as far as the caller may see them.
     *
     * @param after the {@code next} of the page before; null for the first page
     * @param limit how many at most
     * @return the page
     */
    public UserPage users(String after, int limit) {
        Answer answer = client.send(at(Call.get("/v1/state")).with("after", after).with("limit", limit));
        Json.Obj page = answer.object();
        List<String> users = new ArrayList<>();
        for (Json user : answer.array(page, "users").items()) {
            if (!(user.plain() instanceof String || user instanceof Json.Null)) {
                throw answer.unreadable("has a user that is not a string", null);
            }
            users.add((String) user.plain());
        }
        return new UserPage(users, answer.next(page, after));
    }

    /**
     * Returns the keys of a session with their versions, without reading the values.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @return the keys, in order; empty if the session does not exist
     */
    public List<StateKey> keys(String userId, String sessionId) {
        Answer answer;
        try {
            answer = client.send(at(Call.get(path(userId, sessionId))));
        } catch (TreeholdException.NotFound absent) {
            return List.of();
        }
        List<StateKey> keys = new ArrayList<>();
        for (Json item : answer.array(answer.object(), "keys").items()) {
            if (!(item instanceof Json.Obj key)) {
                throw answer.unreadable("has a key that is not an object", null);
            }
            StateKey.Form form = switch (answer.string(key, "form")) {
                case "single" -> StateKey.Form.SINGLE;
                case "list" -> StateKey.Form.LIST;
                default -> throw answer.unreadable("has a key of an unknown form", null);
            };
            boolean isVersioned = form == StateKey.Form.SINGLE;
            keys.add(new StateKey(answer.string(key, "key"), form, isVersioned ? answer.number(key, "version", 1) : UNVERSIONED));
        }
        return keys;
    }

    /**
     * Returns true: the server gives each save its version.
     *
     * @return true
     */
    @Override
    public boolean supportsVersioning() {
        return true;
    }

    /**
     * Returns a session with all its states.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @return an object with {@code user}, {@code session}, {@code agent} and {@code entries}, each with {@code key}, {@code form},
     *     {@code version} and {@code value}
     * @throws TreeholdException.NotFound if it does not exist
     */
    public JsonText export(String userId, String sessionId) {
        Answer answer = client.send(at(Call.get(path(userId, sessionId) + ":export")));
        try {
            return new JsonText(answer.text());
        } catch (JsonSyntaxException cause) {
            throw answer.unreadable("is not JSON", cause);
        }
    }

    /**
     * Returns the conversation of a session as Markdown.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @return the text
     * @throws TreeholdException.NotFound if it does not exist
     */
    public String exportMarkdown(String userId, String sessionId) {
        return client.send(at(Call.get(path(userId, sessionId) + ":export")).withHeader("accept", "text/markdown")).text();
    }

    /**
     * Interrupts the call that runs now for a session, in whatever process. It does not reach calls that wait or come later.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param interrupt what the call is told
     * @return whether a call was running
     */
    public boolean interrupt(String userId, String sessionId, Interrupt interrupt) {
        Call call = at(Call.change("POST", path(userId, sessionId) + ":interrupt")).withJson(interrupt.toJson().toText());
        Answer answer = client.send(call);
        return answer.bool(answer.object(), "hit");
    }

    /** Does nothing: the caller of the constructor closes the client. */
    @Override
    public void close() {}

    /** Returns the agent and the address of the server. */
    @Override
    public String toString() {
        return "TreeholdAgentStateStore(" + agent + ", " + client + ")";
    }

    private long put(String userId, String sessionId, String key, StateKey.Form form, String json, long expectedVersion) {
        Call call = Call.change("PUT", path(userId, sessionId, key)).withJson(json);
        if (form == StateKey.Form.LIST) {
            call.with("form", "list");
        }
        Optional<Answer> changed = change(userId, sessionId, call, expectedVersion);
        if (changed.isEmpty()) {
            return UNVERSIONED;
        }
        Answer answer = changed.get();
        Json.Obj saved = answer.object();
        boolean isVersioned = !(saved.get("version").orElse(Json.Null.NULL) instanceof Json.Null);
        return isVersioned ? answer.number(saved, "version", 1) : UNVERSIONED;
    }

    private boolean remove(String userId, String sessionId, Call call, long expectedVersion) {
        return change(userId, sessionId, call, expectedVersion).isPresent();
    }

    /** Makes a change during the turn, if there is one. Returns nothing if the version is not the expected one. */
    private Optional<Answer> change(String userId, String sessionId, Call call, long expectedVersion) {
        if (expectedVersion < UNVERSIONED) {
            throw new IllegalArgumentException("the expected version is " + expectedVersion + "; it is -1, 0 or a version");
        }
        at(call);
        if (turn != null) {
            if (!turn.key().equals(new TurnKey(userId, sessionId))) {
                throw new IllegalArgumentException("the turn is of another session; acquire one of the session that is changed");
            }
            call.with("fence", turn.fence());
        }
        if (expectedVersion == 0) {
            call.withHeader("if-none-match", "*");
        } else if (expectedVersion > 0) {
            call.withHeader("if-match", "\"" + expectedVersion + "\"");
        }
        try {
            return Optional.of(client.send(call));
        } catch (TreeholdException.Conflict | TreeholdException.AlreadyExists conflict) {
            // 412 is about the version, which a header named; 409 is about the turn.
            if (expectedVersion != UNVERSIONED && conflict.status().orElse(0) == 412) {
                return Optional.empty();
            }
            if (turn != null) {
                throw new TurnLostException(turn.key(), conflict);
            }
            throw conflict;
        }
    }

    private Optional<Answer> read(String userId, String sessionId, String key) {
        try {
            return Optional.of(client.send(at(Call.get(path(userId, sessionId, key)))));
        } catch (TreeholdException.NotFound absent) {
            return Optional.empty();
        }
    }

    private Call at(Call call) {
        return call.with("agent", agent);
    }

    private static String path(String userId, String sessionId) {
        return "/v1/state/" + Segments.user(userId) + "/" + Segments.id("session", sessionId);
    }

    private static String path(String userId, String sessionId, String key) {
        return path(userId, sessionId) + "/" + Segments.id("key", key);
    }

    private String encode(Object value) {
        Objects.requireNonNull(value, "value");
        if (value instanceof Iterable<?>) {
            throw new IllegalArgumentException("the value is a list; pass it as a `List` to save it as one");
        }
        return encodeAs(value.getClass(), value);
    }

    private String encodeList(List<?> values) {
        StringBuilder text = new StringBuilder("[");
        for (Object value : values) {
            Objects.requireNonNull(value, "an item of the list");
            text.append(text.length() > 1 ? "," : "").append(encodeAs(value.getClass(), value));
        }
        return text.append(']').toString();
    }

    private <T> String encodeAs(Class<T> type, Object value) {
        return Codecs.encode(Codecs.of(codecs, type), type.cast(value)).text();
    }
}
