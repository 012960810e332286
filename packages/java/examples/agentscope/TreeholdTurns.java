import dev.treehold.client.TreeholdClient;
import dev.treehold.client.TreeholdTurnGate;
import dev.treehold.client.TurnKey;
import io.agentscope.harness.agent.gateway.SessionTurnGate;
import io.agentscope.harness.agent.gateway.TurnBusyException;
import io.agentscope.harness.agent.gateway.TurnLease;

/** Turns on a treehold server for a gateway of AgentScope, as its own gate. Copy this class into your program. */
public final class TreeholdTurns implements SessionTurnGate {
    private final TreeholdTurnGate gate;

    /**
     * Opens the turns of an agent.
     *
     * @param client the connection, which the caller closes
     * @param agent the id of the agent
     */
    public TreeholdTurns(TreeholdClient client, String agent) {
        gate = TreeholdTurnGate.builder(client).agent(agent).build();
    }

    @Override
    public TurnLease acquire(String key) throws InterruptedException, TurnBusyException {
        try {
            return gate.acquire(TurnKey.of(key))::close;
        } catch (dev.treehold.client.TurnBusyException busy) {
            throw (TurnBusyException) new TurnBusyException(key).initCause(busy);
        }
    }

    @Override
    public boolean isRunning(String key) {
        return gate.isRunning(TurnKey.of(key));
    }
}
