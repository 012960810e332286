import dev.treehold.client.ConflictPolicy;
import dev.treehold.client.Interrupt;
import dev.treehold.client.Json;
import dev.treehold.client.StateCodecs;
import dev.treehold.client.StateSaver;
import dev.treehold.client.TreeholdAgentStateStore;
import dev.treehold.client.TreeholdClient;
import dev.treehold.client.TreeholdTurnGate;
import dev.treehold.client.TurnKey;
import dev.treehold.client.TurnLease;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * An agent whose calls any process can continue: {@code java -cp treehold-client.jar:. StatelessAgent http://127.0.0.1:8080}.
 *
 * <p>Two processes serve one session. The first dies in the middle of its call. The second, which waits for its turn, continues with
 * the state that the first had saved. The agent keeps nothing but its configuration.
 */
public final class StatelessAgent {
    private static final TurnKey SESSION = new TurnKey("ada", "make-tea");
    private static final String KEY = "agent_state";
    private static final List<String> STEPS = List.of("boil water", "warm the pot", "add tea", "pour", "wait", "serve");

    private final String name;
    private final TreeholdTurnGate gate;
    private final TreeholdAgentStateStore states;

    private StatelessAgent(String name, TreeholdClient client) {
        this.name = name;
        this.gate = TreeholdTurnGate.builder(client).agent("tea").owner(name).waitMax(Duration.ofMinutes(2)).build();
        this.states = new TreeholdAgentStateStore(client, "tea", StateCodecs.json());
    }

    /** Serves a call: takes the turn, loads the state, and saves it after each step. */
    private void call(int diesAfter) throws Exception {
        say("asks for the turn");
        try (TurnLease turn = gate.acquire(SESSION)) {
            StateSaver<Json> saver =
                    new StateSaver<>(states.during(turn), StateCodecs.json().codec(Json.class), ConflictPolicy.FAIL);
            StateSaver.Loaded<Json> state = saver.load(SESSION.userId(), SESSION.sessionId(), KEY);
            say("has turn " + turn.fence() + " and finds " + context(state.value()).size() + " steps done");
            for (int step = context(state.value()).size(); step < STEPS.size(); step += 1) {
                Optional<Interrupt> interrupt = turn.check();
                if (interrupt.isPresent()) {
                    say("is interrupted");
                    return;
                }
                List<Json> context = new ArrayList<>(context(state.value()));
                context.add(Json.from(Map.of("name", name, "role", "ASSISTANT", "content", STEPS.get(step))));
                state = saver.save(state, withContext(state.value(), context));
                say("did: " + STEPS.get(step) + " (version " + state.version() + ")");
                if (context.size() == diesAfter) {
                    say("dies");
                    // Like `kill -9`: no `finally`, and the turn is not freed.
                    Runtime.getRuntime().halt(9);
                }
            }
        }
        say("is done");
    }

    private static List<Json> context(Json state) {
        return state instanceof Json.Obj fields && fields.members().get("context") instanceof Json.Arr context ? context.items() : List.of();
    }

    private static Json withContext(Json state, List<Json> context) {
        Json.Obj known = state instanceof Json.Obj fields ? fields : new Json.Obj(new LinkedHashMap<>());
        return known.with("session_id", Json.of(SESSION.sessionId())).with("context", new Json.Arr(context));
    }

    private void say(String text) {
        System.out.println(name + " " + text);
    }

    /** Starts this program once more, in a process of its own. */
    private static Process start(String... arguments) throws IOException {
        List<String> command = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "-cp", System.getProperty("java.class.path"), StatelessAgent.class.getName()));
        command.addAll(List.of(arguments));
        return new ProcessBuilder(command).inheritIO().start();
    }

    /**
     * Runs the example, or one of its processes.
     *
     * @param arguments the address of a server; for a process also its name, and after how many steps it dies
     */
    public static void main(String[] arguments) throws Exception {
        String server = arguments.length > 0 ? arguments[0] : "http://127.0.0.1:8080";
        try (TreeholdClient client = TreeholdClient.builder(server).token(System.getenv("TREEHOLD_TOKEN")).build()) {
            if (arguments.length == 3) {
                new StatelessAgent(arguments[1], client).call(Integer.parseInt(arguments[2]));
                return;
            }
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(client, "tea", StateCodecs.json());
            states.delete(SESSION.userId(), SESSION.sessionId());
            // The first one dies after three steps. Its turn ends with its lease, and the second one gets it.
            int died = start(server, "first", "3").waitFor();
            int done = start(server, "second", "0").waitFor();
            Json state = states.get(SESSION.userId(), SESSION.sessionId(), KEY, Json.class).orElseThrow();
            List<String> workers = new ArrayList<>();
            context(state).forEach(message -> workers.add((String) ((Json.Obj) message).members().get("name").plain()));
            System.out.println("steps were done by " + workers);
            boolean isRight = died == 9 && done == 0
                    && workers.equals(List.of("first", "first", "first", "second", "second", "second"));
            System.exit(isRight ? 0 : 1);
        }
    }
}
