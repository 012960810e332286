package dev.treehold.client;

/** Another writer changed a state since it was loaded, and nothing was saved. Load it again and repeat the call, or report it. */
public final class ConcurrentSessionModificationException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** The user; null for the anonymous one. */
    private final String userId;

    /** The session. */
    private final String sessionId;

    /** The key. */
    private final String key;

    /** The version that the state had for the caller. */
    private final long expectedVersion;

    /**
     * Makes the exception.
     *
     * @param userId the user; null for the anonymous one
     * @param sessionId the session
     * @param key the key
     * @param expectedVersion the version that the state had for the caller
     */
    public ConcurrentSessionModificationException(String userId, String sessionId, String key, long expectedVersion) {
        super(String.format(
                "Concurrent modification of session state (userId=%s, sessionId=%s, key=%s, expectedVersion=%d)",
                userId, sessionId, key, expectedVersion));
        this.userId = userId;
        this.sessionId = sessionId;
        this.key = key;
        this.expectedVersion = expectedVersion;
    }

    /**
     * Returns the user.
     *
     * @return its id; null for the anonymous one
     */
    public String getUserId() {
        return userId;
    }

    /**
     * Returns the session.
     *
     * @return its id
     */
    public String getSessionId() {
        return sessionId;
    }

    /**
     * Returns the key.
     *
     * @return the key
     */
    public String getKey() {
        return key;
    }

    /**
     * Returns the version that the state had for the caller.
     *
     * @return the version; 0 if there was no state
     */
    public long getExpectedVersion() {
        return expectedVersion;
    }
}
