//! The cases. Each gets a fresh store. The comment of a case states the rule that it checks.

pub(crate) mod contract;

/// Makes a module with one test for each case of the trait `AgentStateStore`: `state_store_cases!(name, crate::fresh)`, where `fresh` is
/// an async function that returns a fresh `Arc<dyn AgentStateStore>` and a guard that removes it. A case asks the store for its
/// capabilities, so stores without versions run all of them too.
macro_rules! state_store_cases {
    ($(#[$attribute:meta])* $engine:ident, $fresh:path) => {
        agent_state_cases!(@rows [$(#[$attribute])*] $engine, $fresh,
            contract: [
                absent_values_are_absent_in_every_operation,
                values_survive_byte_for_byte,
                versions_count_from_one_for_each_key,
                save_with_a_wrong_expectation_writes_nothing,
                create_only_save_is_refused_where_a_value_exists,
                list_replaces_the_whole_list_and_an_empty_one_empties_it,
                single_and_list_of_one_key_are_distinct,
                users_sessions_and_keys_do_not_leak_into_each_other,
                delete_of_a_key_leaves_the_others,
                delete_of_a_session_leaves_the_others,
                sessions_are_listed_in_pages_in_order,
                users_are_listed_after_the_anonymous_one,
                bad_ids_and_keys_are_refused_and_write_nothing,
                each_of_many_concurrent_saves_gets_its_own_version,
                one_of_many_concurrent_compare_and_sets_wins,
            ],
        );
    };
}

/// Makes the tests of a table of cases.
macro_rules! agent_state_cases {
    (@rows $attributes:tt $engine:ident, $fresh:path, $($group:ident: [$($case:ident),* $(,)?],)*) => {
        mod $engine {
            $($(agent_state_cases!(@case $attributes $group, $case, $fresh);)*)*
        }
    };
    (@case [$(#[$attribute:meta])*] $group:ident, $case:ident, $fresh:path) => {
        #[tokio::test]
        $(#[$attribute])*
        async fn $case() {
            let (store, _keep) = $fresh().await;
            crate::cases::$group::$case(store).await;
        }
    };
}
