/** A client of the agent states, turns and items of a treehold server. It depends on the JDK alone. */
module dev.treehold.client {
    requires transitive java.net.http;

    exports dev.treehold.client;
}
