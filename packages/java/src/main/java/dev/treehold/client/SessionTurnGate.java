package dev.treehold.client;

/**
 * Lets one call of a session run at a time. Calls of different sessions run in parallel.
 *
 * <p>Save with {@link ConflictPolicy#FAIL} during a turn, so that a conflict is not overwritten.
 */
public interface SessionTurnGate {
    /**
     * Takes the turn of a session, after those that asked before.
     *
     * @param key the session
     * @return the turn; close it at the end of the call
     * @throws InterruptedException if the thread is interrupted while it waits; it leaves the queue then
     * @throws TurnBusyException if the turn did not come within the time of the gate; the caller has left the queue then
     */
    TurnLease acquire(TurnKey key) throws InterruptedException, TurnBusyException;

    /**
     * Returns whether a call of a session runs now, in whatever process. It can have ended when this returns.
     *
     * @param key the session
     * @return whether one runs
     */
    boolean isRunning(TurnKey key);
}
