package dev.treehold.client;

import java.util.List;

/**
 * A page of the sessions of a user.
 *
 * @param sessions their ids, in order
 * @param next where the next page starts; null at the end
 */
public record SessionIdPage(List<String> sessions, String next) {
    /**
     * Makes a page.
     *
     * @param sessions their ids, in order
     * @param next where the next page starts; null at the end
     */
    public SessionIdPage {
        sessions = List.copyOf(sessions);
    }
}
