package dev.treehold.client;

/** Another call of the session is running. Try again later, or leave the request out if it only wakes the session. */
public final class TurnBusyException extends Exception {
    private static final long serialVersionUID = 1L;

    /** The session. */
    private final transient TurnKey key;

    /**
     * Makes the exception.
     *
     * @param key the session
     */
    public TurnBusyException(TurnKey key) {
        super("Session turn gate busy: " + key.sessionId());
        this.key = key;
    }

    /**
     * Returns the session.
     *
     * @return the session whose turn is taken
     */
    public TurnKey key() {
        return key;
    }
}
