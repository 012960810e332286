package dev.treehold.client;

import java.util.Optional;
import java.util.concurrent.CompletionStage;

/** A turn that a call holds until it closes it. It is renewed in the background. */
public interface TurnLease extends AutoCloseable {
    /**
     * Returns the session of the turn.
     *
     * @return the session
     */
    TurnKey key();

    /**
     * Returns the text that proves the turn to the server.
     *
     * @return the token
     */
    String token();

    /**
     * Returns the number of the turn. A later turn of the session has a greater one.
     *
     * @return the fencing token
     */
    long fence();

    /**
     * Renews the turn now, and asks whether the call is to end. Call it at each safe point: between the steps of the call.
     *
     * @return the interrupt, if there is one
     * @throws TurnLostException if another call has the turn
     * @throws TreeholdException if the server does not answer
     */
    Optional<Interrupt> check();

    /**
     * Returns the interrupt that the last renewal found, without asking the server.
     *
     * @return the interrupt, if there is one
     */
    Optional<Interrupt> interrupt();

    /**
     * Returns whether the server has said that another call has the turn. Saves during this turn are refused then.
     *
     * @return whether the turn is lost
     */
    boolean isLost();

    /**
     * Returns what completes when a renewal finds an interrupt. It never completes otherwise.
     *
     * @return the interrupt to come
     */
    CompletionStage<Interrupt> whenInterrupted();

    /**
     * Returns what completes when a renewal finds that the turn is lost. It never completes otherwise.
     *
     * @return the loss to come
     */
    CompletionStage<Void> whenLost();

    /**
     * Frees the turn. Closing it again does nothing. It never throws: if the server does not answer, the turn ends with its lease.
     */
    @Override
    void close();
}
