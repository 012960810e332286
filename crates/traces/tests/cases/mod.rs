//! The cases of traces in a store. Each gets a fresh store. The comment of a case states the rule that it checks.

pub(crate) mod access;
pub(crate) mod claims;
pub(crate) mod damage;
pub(crate) mod kills;
pub(crate) mod limits;
pub(crate) mod removal;
pub(crate) mod support;

/// Makes a module with one test for each case: `stored_trace_cases!(name, crate::fresh)`, where `fresh` is an async function that returns
/// a fresh `Arc<dyn Store>` and a guard that removes it.
macro_rules! stored_trace_cases {
    ($(#[$attribute:meta])* $engine:ident, $fresh:path) => {
        stored_trace_cases!(@rows [$(#[$attribute])*] $engine, $fresh,
            access: [
                trace_of_another_user_is_refused_by_every_method,
                tenants_have_traces_of_their_own,
                trace_that_lives_elsewhere_is_refused_by_every_method,
                ids_that_name_no_tenant_or_user_are_refused,
                all_rows_of_a_user_share_a_prefix,
            ],
            claims: [
                trace_is_claimed_by_one_process_at_a_time,
                claim_that_expired_is_taken_over,
                commit_under_a_lost_claim_writes_nothing,
                claim_of_a_deleted_trace_leaves_no_row,
            ],
            damage: [
                damaged_rows_are_corrupt_and_never_absent,
                missing_rows_are_corrupt,
                path_in_a_circle_is_corrupt,
                numbers_out_of_range_are_corrupt,
            ],
            kills: [
                change_that_is_killed_leaves_the_old_trace_or_the_new,
                change_overtaken_by_another_is_planned_again,
                call_repeated_after_a_lost_answer_takes_effect_once,
                writers_of_two_processes_lose_no_message,
            ],
            limits: [
                values_over_the_limits_are_refused_and_store_nothing,
                pages_end_at_their_bytes,
                deep_json_is_refused_and_the_deepest_allowed_is_readable,
                totals_that_would_overflow_are_refused,
                expired_key_is_forgotten,
                many_goals_are_counted_together,
            ],
            removal: [
                deleted_trace_leaves_no_rows,
                interrupted_deletion_is_finished_by_a_sweep,
                deletion_beside_a_sweep_of_an_earlier_one_is_finished,
                creation_that_lost_a_race_leaves_the_id_free_for_others,
                long_trace_is_removed_in_bounded_steps,
                deletion_overtaken_by_a_change_leaves_no_row,
                write_overtaken_by_a_deletion_leaves_no_row,
                write_overtaken_by_a_deletion_never_reaches_a_later_trace,
                live_trace_survives_an_old_row_that_says_to_remove_it,
                page_of_traces_passes_over_those_deleted_meanwhile,
                damaged_removal_does_not_stop_the_others,
            ],
        );
    };
    (@rows $attributes:tt $engine:ident, $fresh:path, $($group:ident: [$($case:ident),* $(,)?],)*) => {
        mod $engine {
            $($(stored_trace_cases!(@case $attributes $group, $case, $fresh);)*)*
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
