import dev.treehold.client.StateCodecs;
import dev.treehold.client.TreeholdAgentStateStore;
import dev.treehold.client.TreeholdClient;
import io.agentscope.core.state.AgentStateStore;
import io.agentscope.core.state.State;
import io.agentscope.core.state.VersionedState;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/** States on a treehold server for agents of AgentScope, as its own state store. Copy this class into your program. */
public final class TreeholdStates implements AgentStateStore {
    private final TreeholdAgentStateStore states;

    /**
     * Opens the states of an agent.
     *
     * @param client the connection, which the caller closes
     * @param agent the id of the agent
     * @param codecs convert the states to JSON and back, such as {@code StateCodecs.of(mapper::writeValueAsString, mapper::readValue)}
     */
    public TreeholdStates(TreeholdClient client, String agent, StateCodecs codecs) {
        states = new TreeholdAgentStateStore(client, agent, codecs);
    }

    @Override
    public void save(String userId, String sessionId, String key, State value) {
        states.save(userId, sessionId, key, value);
    }

    @Override
    public void save(String userId, String sessionId, String key, List<? extends State> values) {
        states.save(userId, sessionId, key, values);
    }

    @Override
    public <T extends State> Optional<T> get(String userId, String sessionId, String key, Class<T> type) {
        return states.get(userId, sessionId, key, type);
    }

    @Override
    public <T extends State> List<T> getList(String userId, String sessionId, String key, Class<T> itemType) {
        return states.getList(userId, sessionId, key, itemType);
    }

    @Override
    public boolean exists(String userId, String sessionId) {
        return states.exists(userId, sessionId);
    }

    @Override
    public void delete(String userId, String sessionId) {
        states.delete(userId, sessionId);
    }

    @Override
    public void delete(String userId, String sessionId, String key) {
        states.delete(userId, sessionId, key);
    }

    @Override
    public Set<String> listSessionIds(String userId) {
        return states.listSessionIds(userId);
    }

    // The interface has default bodies for these three, which compare nothing.

    @Override
    public boolean supportsVersioning() {
        return true;
    }

    @Override
    public <T extends State> VersionedState<T> getVersioned(String userId, String sessionId, String key, Class<T> type) {
        dev.treehold.client.VersionedState<T> found = states.getVersioned(userId, sessionId, key, type);
        return new VersionedState<>(found.value(), found.version());
    }

    @Override
    public long saveIfVersion(String userId, String sessionId, String key, State value, long expectedVersion) {
        return states.saveIfVersion(userId, sessionId, key, value, expectedVersion);
    }

    @Override
    public void close() {
        states.close();
    }
}
