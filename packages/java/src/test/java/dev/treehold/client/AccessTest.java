package dev.treehold.client;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/** Tokens on a server that requires them: who may act for whom, and what a token without the right cannot reach. */
final class AccessTest {
    private static final TurnKey ADA = new TurnKey("ada", "s");

    /** A server that requires tokens, with a state of ada's. */
    private record Guarded(ServedStore served) implements AutoCloseable {
        static Guarded start() throws Exception {
            Guarded guarded = new Guarded(new ServedStore().start("--tokens"));
            guarded.states(guarded.host().build()).save("ada", "s", "k", "secret");
            return guarded;
        }

        TreeholdClient.Builder client(String... options) throws Exception {
            List<String> arguments = new ArrayList<>(List.of("token", "create"));
            arguments.addAll(List.of(options));
            return TreeholdClient.builder(served.baseUrl()).token(served.run(arguments.toArray(String[]::new)).strip());
        }

        TreeholdClient.Builder host() throws Exception {
            return client("--access", "admin", "--acts-for", "tenant", "--tenant", "acme", "--user", "host");
        }

        TreeholdAgentStateStore states(TreeholdClient client) {
            return new TreeholdAgentStateStore(client);
        }

        @Override
        public void close() {
            served.close();
        }
    }

    private static List<Check.Work> calls(TreeholdClient client) {
        TreeholdAgentStateStore states = new TreeholdAgentStateStore(client);
        TreeholdTurnGate gate = TreeholdTurnGate.builder(client).build();
        return List.of(
                () -> states.get("ada", "s", "k", Json.class),
                () -> states.getVersioned("ada", "s", "k", Json.class),
                () -> states.getList("ada", "s", "k", Json.class),
                () -> states.exists("ada", "s"),
                () -> states.export("ada", "s"),
                () -> states.exportMarkdown("ada", "s"),
                () -> states.listSessionIds("ada"),
                () -> states.save("ada", "s", "k", 1),
                () -> states.save("ada", "s", "k", List.of(1)),
                () -> states.saveIfVersion("ada", "s", "k", 1, 1),
                () -> states.delete("ada", "s", "k"),
                () -> states.delete("ada", "s"),
                () -> states.interrupt("ada", "s", Interrupt.byUser()),
                () -> gate.acquire(ADA, Duration.ZERO),
                () -> gate.isRunning(ADA));
    }

    @Test
    void nobody_else_reaches_the_states_and_turns_of_a_user() throws Exception {
        try (Guarded guarded = Guarded.start()) {
            List<TreeholdClient> strangers = List.of(
                    TreeholdClient.builder(guarded.served.baseUrl()).build(),
                    TreeholdClient.builder(guarded.served.baseUrl()).token("wrong").build(),
                    guarded.client("--access", "write", "--tenant", "acme", "--user", "eve").build(),
                    guarded.client("--access", "admin", "--tenant", "acme", "--user", "eve").build(),
                    guarded.client("--access", "admin", "--acts-for", "tenant", "--tenant", "other", "--user", "host").tenant("acme").build());
            for (int stranger = 0; stranger < strangers.size(); stranger += 1) {
                List<Check.Work> calls = calls(strangers.get(stranger));
                for (int at = 0; at < calls.size(); at += 1) {
                    String about = "call " + at + " of stranger " + stranger;
                    TreeholdException thrown = Check.fails(TreeholdException.PermissionDenied.class, about, calls.get(at));
                    Check.isTrue(!thrown.getMessage().contains("secret"), thrown.getMessage());
                }
            }
            TreeholdAgentStateStore states = guarded.states(guarded.host().build());
            Check.equal(new VersionedState<>("secret", 1), states.getVersioned("ada", "s", "k", String.class));
        }
    }

    @Test
    void reader_reads_and_changes_nothing() throws Exception {
        try (Guarded guarded = Guarded.start()) {
            TreeholdClient reader = guarded.client("--access", "read", "--tenant", "acme", "--user", "ada").build();
            TreeholdAgentStateStore states = guarded.states(reader);
            Check.equal(Optional.of("secret"), states.get("ada", "s", "k", String.class));
            Check.equal(Set.of("s"), states.listSessionIds("ada"));
            List<Check.Work> calls = calls(reader);
            for (int at = 7; at < 14; at += 1) {
                Check.fails(TreeholdException.PermissionDenied.class, "call " + at, calls.get(at));
            }
            Check.equal(new VersionedState<>("secret", 1), states.getVersioned("ada", "s", "k", String.class));
        }
    }

    @Test
    void host_acts_for_its_users_and_with_a_tenant_for_those_of_others() throws Exception {
        try (Guarded guarded = Guarded.start()) {
            String[] all = {"--access", "admin", "--acts-for", "all", "--tenant", "ops", "--user", "host"};
            TreeholdAgentStateStore own = guarded.states(guarded.client(all).build());
            Check.equal(Optional.empty(), own.get("ada", "s", "k", String.class));
            TreeholdClient acme = guarded.client(all).tenant("acme").build();
            Check.equal(Optional.of("secret"), guarded.states(acme).get("ada", "s", "k", String.class));
            try (TurnLease turn = TreeholdTurnGate.builder(acme).build().acquire(ADA)) {
                Check.equal(2L, guarded.states(acme).during(turn).save("ada", "s", "k", "changed"));
                Check.isTrue(TreeholdTurnGate.builder(guarded.host().build()).build().isRunning(ADA), "it is the same tenant");
            }
            String odd = "a/b: é";
            TreeholdAgentStateStore other = guarded.states(guarded.client(all).tenant(odd).build());
            other.save("ada", "s", "k", "theirs");
            Check.equal(Optional.of("changed"), guarded.states(acme).get("ada", "s", "k", String.class));
            TreeholdClient ofOdd = guarded.client("--access", "read", "--tenant", odd, "--user", "ada").build();
            Check.equal(Optional.of("theirs"), guarded.states(ofOdd).get("ada", "s", "k", String.class));
        }
    }
}
