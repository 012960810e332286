package dev.treehold.client;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * A page of the users that have states.
 *
 * @param users their ids, in order; null is the anonymous user
 * @param next where the next page starts; null at the end
 */
public record UserPage(List<String> users, String next) {
    /**
     * Makes a page.
     *
     * @param users their ids, in order; null is the anonymous user
     * @param next where the next page starts; null at the end
     */
    public UserPage {
        users = Collections.unmodifiableList(new ArrayList<>(users));
    }
}
