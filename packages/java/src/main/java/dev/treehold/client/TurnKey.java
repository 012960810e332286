package dev.treehold.client;

/**
 * What a turn is taken of: a session of a user. A null or blank user is the anonymous one.
 *
 * @param userId the user, or null
 * @param sessionId the session
 */
public record TurnKey(String userId, String sessionId) {
    /**
     * Makes a key.
     *
     * @param userId the user, or null
     * @param sessionId the session
     * @throws IllegalArgumentException for a null or blank session
     */
    public TurnKey {
        userId = userId == null || userId.isBlank() ? null : userId;
        Segments.user(userId);
        Segments.id("session", sessionId);
    }

    /**
     * Makes the key of a gateway that names a turn by one text. It is an anonymous session of this name.
     *
     * @param text the name of the turn
     * @return the key
     */
    public static TurnKey of(String text) {
        return new TurnKey(null, text);
    }
}
