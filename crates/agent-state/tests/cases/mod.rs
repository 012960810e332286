//! The cases. Each gets a fresh store. The comment of a case states the rule that it checks.

pub(crate) mod changes;
pub(crate) mod contract;
pub(crate) mod damage;
pub(crate) mod log;
pub(crate) mod policy;
pub(crate) mod removal;
pub(crate) mod support;

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
                every_change_checks_the_version_that_it_expects,
                every_change_with_a_fence_is_refused_where_none_can_be_checked,
                one_of_many_saves_and_deletions_of_a_version_wins,
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
            policy: [
                policy_saves_a_state_that_nobody_changed,
                overwriting_policy_replaces_and_counts_the_conflict,
                failing_policy_writes_nothing_and_names_the_state,
                merging_policy_adds_the_messages_of_the_turn,
                merge_with_a_deleted_state_is_refused,
                concurrent_merges_lose_no_message,
                cache_never_hides_the_save_of_another_process,
                legacy_keys_are_read_until_the_present_one_exists,
            ],
        );
    };
}

/// Makes a module with one test for each case of states in a store: `stored_state_cases!(name, crate::fresh)`, where `fresh` is an async
/// function that returns a fresh `Arc<dyn Store>` and a guard that removes it.
#[allow(unused_macros)]
macro_rules! stored_state_cases {
    ($(#[$attribute:meta])* $engine:ident, $fresh:path) => {
        agent_state_cases!(@rows [$(#[$attribute])*] $engine, $fresh,
            damage: [
                damaged_rows_are_corrupt_and_never_absent,
                damaged_session_can_be_deleted,
                missing_message_is_corrupt,
            ],
            log: [
                save_writes_new_messages_and_the_head,
                compaction_writes_the_summary_and_keeps_the_history,
                any_change_keeps_the_exact_text,
                reader_overtaken_by_a_compaction_reads_the_new_state,
                save_overtaken_by_a_compaction_is_planned_again,
                large_save_takes_effect_as_a_whole,
                large_save_that_fails_leaves_the_old_state_or_the_new,
                large_save_that_a_sweep_ended_writes_nothing,
                large_save_that_loses_a_race_leaves_no_messages,
                list_writes_only_new_elements,
                values_over_the_limits_are_refused_and_write_nothing,
                list_whose_array_would_nest_too_deep_is_refused,
            ],
            removal: [
                versions_continue_after_a_deletion,
                deleted_session_leaves_no_rows,
                deleted_session_takes_the_rows_of_its_bundle_along,
                interrupted_deletion_is_finished_by_a_sweep,
                save_overtaken_by_a_deletion_keeps_nothing_of_it,
                versions_continue_after_a_deletion_that_a_save_overtook,
                key_created_during_the_deletion_of_the_last_one_survives,
                save_is_refused_once_its_fence_has_fallen,
                every_change_is_refused_once_its_fence_has_fallen,
                fence_in_another_partition_is_refused,
                change_that_loses_its_fence_on_the_way_changes_nothing,
                remembered_change_keeps_what_can_be_redone_once_its_fence_has_fallen,
                session_without_states_takes_the_rows_of_its_bundle_along,
                user_leaves_the_directory_with_the_last_session,
                user_who_is_saved_during_a_removal_stays_in_the_directory,
                directory_has_the_users_with_sessions_after_concurrent_changes,
                restricted_states_refuse_those_of_others,
                similar_ids_never_share_a_slot,
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
