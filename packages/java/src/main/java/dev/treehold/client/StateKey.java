package dev.treehold.client;

/**
 * A key of a session.
 *
 * @param key the key
 * @param form whether it holds a single value or a list
 * @param version the version of a single value; {@link AgentStateStore#UNVERSIONED} for a list
 */
public record StateKey(String key, Form form, long version) {
    /** Whether a key holds a single value or a list. One key may hold both. */
    public enum Form {
        /** A single value. */
        SINGLE,
        /** A list. */
        LIST
    }
}
