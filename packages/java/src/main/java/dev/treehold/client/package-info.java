/**
 * Agent states, turns and items on a treehold server.
 *
 * <p>Begin with {@link dev.treehold.client.TreeholdClient}. {@link dev.treehold.client.TreeholdAgentStateStore} keeps states by
 * user and session, {@link dev.treehold.client.TreeholdTurnGate} lets one call of a session run at a time on all machines, and
 * {@link dev.treehold.client.TreeholdBaseStore} keeps items by namespace and key.
 */
package dev.treehold.client;
