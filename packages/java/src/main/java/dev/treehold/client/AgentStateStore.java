package dev.treehold.client;

import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * The states of agents, by user, session and key. It has the operations of the state store of AgentScope.
 *
 * <p>A {@code userId} that is null or blank is the anonymous user, whom no user's id can name. A {@code sessionId} is required: a
 * null or blank one is an {@link IllegalArgumentException}. Ids are never joined, so {@code a/b} with {@code c} and {@code a} with
 * {@code b/c} are different sessions.
 *
 * <p>No method has a default body: a wrapper that forgets the versions does not compile.
 */
public interface AgentStateStore extends AutoCloseable {
    /** The version in a store without versions, the expected version of a save that replaces anything, and the answer to a conflict. */
    long UNVERSIONED = -1L;

    /**
     * Saves a single value, whatever is there.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key, such as {@code agent_state}
     * @param value the value
     * @return the version that this save gave it, or {@link #UNVERSIONED} in a store without versions
     * @throws IllegalArgumentException for a list, which has a method of its own, and a value without a JSON form
     */
    long save(String userId, String sessionId, String key, Object value);

    /**
     * Saves a list, always as a whole. An empty list replaces the stored one too.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key
     * @param values all items
     * @return the version that this save gave the list, or {@link #UNVERSIONED} in a store without versions
     */
    long save(String userId, String sessionId, String key, List<?> values);

    /**
     * Returns a single value.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key
     * @param type the class of the value
     * @param <T> the class of the value
     * @return the value; empty if there is none
     * @throws TreeholdException.Corrupt if it cannot be read. A failed read never looks like an absent value.
     */
    <T> Optional<T> get(String userId, String sessionId, String key, Class<T> type);

    /**
     * Returns a list.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key
     * @param itemType the class of the items
     * @param <T> the class of the items
     * @return the items; empty if there is no list
     */
    <T> List<T> getList(String userId, String sessionId, String key, Class<T> itemType);

    /**
     * Returns whether a session has any state.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @return whether there is any
     */
    boolean exists(String userId, String sessionId);

    /**
     * Removes a session with all its states. Removing an absent one is no error.
     *
     * @param userId the user, or null
     * @param sessionId the session
     */
    void delete(String userId, String sessionId);

    /**
     * Removes the value and the list of a key. Removing absent ones is no error.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key
     */
    void delete(String userId, String sessionId, String key);

    /**
     * Returns the sessions of a user.
     *
     * @param userId the user; null for the anonymous sessions
     * @return their ids, in order
     */
    Set<String> listSessionIds(String userId);

    /**
     * Returns whether values have versions, so that {@link #saveIfVersion} compares.
     *
     * @return whether they have
     */
    boolean supportsVersioning();

    /**
     * Returns a single value with its version.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key
     * @param type the class of the value
     * @param <T> the class of the value
     * @return the value with its version; if there is none, null with version 0
     */
    <T> VersionedState<T> getVersioned(String userId, String sessionId, String key, Class<T> type);

    /**
     * Saves a single value if the stored one has a version. The comparison and the save are one step.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key
     * @param value the value
     * @param expectedVersion the version that the caller has seen; 0 if there must be no value, {@link #UNVERSIONED} if it does not
     *     matter
     * @return the version that this save gave the value, or {@link #UNVERSIONED} on a conflict, when nothing was saved
     */
    long saveIfVersion(String userId, String sessionId, String key, Object value, long expectedVersion);

    /**
     * Removes a single value if the stored one has a version. The comparison and the removal are one step. The list of the key stays.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @param key the key
     * @param expectedVersion the version that the caller has seen, or {@link #UNVERSIONED} if it does not matter
     * @return whether the value is gone; false on a conflict, when nothing was removed
     * @throws IllegalArgumentException for 0: what does not exist cannot be removed
     */
    boolean deleteIfVersion(String userId, String sessionId, String key, long expectedVersion);

    /** Frees what the store holds. */
    @Override
    void close();
}
