package dev.treehold.client;

/** The call no longer has the turn of its session, and another one may have begun. Nothing was changed. End the call. */
public final class TurnLostException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** The session. */
    private final transient TurnKey key;

    /**
     * Makes the exception.
     *
     * @param key the session
     * @param cause the server's answer
     */
    public TurnLostException(TurnKey key, Throwable cause) {
        super("the turn of the session `" + key.sessionId() + "` was lost; end the call", cause);
        this.key = key;
    }

    /**
     * Returns the session.
     *
     * @return the session whose turn was lost
     */
    public TurnKey key() {
        return key;
    }
}
