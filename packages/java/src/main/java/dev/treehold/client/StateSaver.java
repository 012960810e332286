package dev.treehold.client;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Loads a state at the start of a call and saves it at the end, with a policy for conflicts. Any number of threads can use it.
 *
 * <pre>{@code
 * StateSaver<AgentState> saver = new StateSaver<>(store, codec, ConflictPolicy.FAIL);
 * StateSaver.Loaded<AgentState> loaded = saver.load("ada", "s1", "agent_state");
 * AgentState state = loaded.value() == null ? new AgentState() : loaded.value();
 * // … the call changes the state …
 * loaded = saver.save(loaded, state);
 * }</pre>
 *
 * @param <T> the class of the states
 */
public final class StateSaver<T> {
    private static final String CONTEXT = "context";
    private static final String PERMISSIONS = "permission_context";
    private static final Json EMPTY = new Json.Arr(List.of());

    private final AgentStateStore store;
    private final StateCodec<T> codec;
    private final ConflictPolicy policy;
    private final AtomicLong conflicts = new AtomicLong();

    /**
     * Makes a saver.
     *
     * @param store the states; they take values of the class {@link JsonText}
     * @param codec converts the states to JSON and back
     * @param policy what a conflict does
     */
    public StateSaver(AgentStateStore store, StateCodec<T> codec, ConflictPolicy policy) {
        this.store = Objects.requireNonNull(store, "store");
        this.codec = Objects.requireNonNull(codec, "codec");
        this.policy = Objects.requireNonNull(policy, "policy");
    }

    /**
     * A state as it was loaded or saved.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key
     * @param value the state; null if there is none
     * @param version its version; 0 if there is none
     * @param before the state as JSON, before the call changes it; null if there is none
     * @param <T> the class of the state
     */
    public record Loaded<T>(String userId, String sessionId, String key, T value, long version, JsonText before) {}

    /**
     * Loads a state. If this fails, the call must fail too: a fresh state would replace the stored one at the end.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key, such as {@code agent_state}
     * @return the state with its version; its value is null if there is none
     * @throws TreeholdException.Corrupt if the state cannot be read
     */
    public Loaded<T> load(String userId, String sessionId, String key) {
        VersionedState<JsonText> stored = store.getVersioned(userId, sessionId, key, JsonText.class);
        return loaded(userId, sessionId, key, stored.value(), stored.version());
    }

    /**
     * Saves a state at the end of a call, or of one of its steps.
     *
     * @param loaded what {@link #load} or the save before returned
     * @param value the state now
     * @return the state as it is stored now, with its version; after a merge it has the messages of both writers
     * @throws ConcurrentSessionModificationException if another writer changed the state and the policy does not overwrite or cannot
     *     merge it; nothing was saved
     */
    public Loaded<T> save(Loaded<T> loaded, T value) {
        JsonText mine = Codecs.encode(codec, value);
        long version = store.saveIfVersion(loaded.userId, loaded.sessionId, loaded.key, mine, loaded.version);
        if (version != AgentStateStore.UNVERSIONED || !store.supportsVersioning() || loaded.version == AgentStateStore.UNVERSIONED) {
            return new Loaded<>(loaded.userId, loaded.sessionId, loaded.key, value, version, mine);
        }
        conflicts.incrementAndGet();
        return switch (policy) {
            case OVERWRITE -> {
                long next = store.save(loaded.userId, loaded.sessionId, loaded.key, mine);
                yield new Loaded<>(loaded.userId, loaded.sessionId, loaded.key, value, next, mine);
            }
            case FAIL -> throw conflict(loaded, loaded.version);
            case APPEND_MERGE -> merged(loaded, mine);
        };
    }

    /**
     * Returns how many saves found that another writer had changed the state, whatever the policy did then.
     *
     * @return the number since the saver was made
     */
    public long conflicts() {
        return conflicts.get();
    }

    private Loaded<T> merged(Loaded<T> loaded, JsonText mine) {
        VersionedState<JsonText> latest = store.getVersioned(loaded.userId, loaded.sessionId, loaded.key, JsonText.class);
        Json.Obj own = object(mine);
        List<Json> added = added(loaded, own);
        Json.Obj base = latest.isPresent() ? object(latest.value()) : null;
        List<Json> context = base == null ? null : context(base);
        if (added == null || context == null) {
            throw conflict(loaded, loaded.version);
        }
        List<Json> both = new ArrayList<>(context);
        both.addAll(added);
        Json.Obj merged = base.with(CONTEXT, new Json.Arr(both));
        Json permissions = own.members().get(PERMISSIONS);
        if (permissions != null) {
            merged = merged.with(PERMISSIONS, permissions);
        }
        JsonText text = new JsonText(merged.toText());
        long version = store.saveIfVersion(loaded.userId, loaded.sessionId, loaded.key, text, latest.version());
        if (version == AgentStateStore.UNVERSIONED) {
            throw conflict(loaded, latest.version());
        }
        return loaded(loaded.userId, loaded.sessionId, loaded.key, text, version);
    }

    /** Returns the messages that the call added; null if it rewrote those that it loaded, so that the states cannot be merged. */
    private List<Json> added(Loaded<T> loaded, Json.Obj own) {
        Json.Obj before = loaded.before == null ? new Json.Obj(Map.of()) : object(loaded.before);
        List<Json> old = before == null ? null : context(before);
        List<Json> now = own == null ? null : context(own);
        boolean isAppended = old != null && now != null && now.size() >= old.size() && now.subList(0, old.size()).equals(old);
        return isAppended ? now.subList(old.size(), now.size()) : null;
    }

    private static Json.Obj object(JsonText text) {
        return text.tree() instanceof Json.Obj object ? object : null;
    }

    private static List<Json> context(Json.Obj state) {
        Json context = state.get(CONTEXT).orElse(EMPTY);
        return context instanceof Json.Arr messages ? messages.items() : null;
    }

    private Loaded<T> loaded(String userId, String sessionId, String key, JsonText text, long version) {
        if (text == null) {
            return new Loaded<>(userId, sessionId, key, null, version, null);
        }
        T value = Codecs.decode(codec, "session " + sessionId, text.text());
        // As the codec writes it, so that a merge can tell what the call changed.
        JsonText before = policy == ConflictPolicy.APPEND_MERGE ? Codecs.encode(codec, value) : text;
        return new Loaded<>(userId, sessionId, key, value, version, before);
    }

    private static ConcurrentSessionModificationException conflict(Loaded<?> loaded, long expectedVersion) {
        return new ConcurrentSessionModificationException(loaded.userId, loaded.sessionId, loaded.key, expectedVersion);
    }
}
