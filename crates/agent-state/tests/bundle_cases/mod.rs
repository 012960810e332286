//! The cases. Each gets a fresh store. The comment of a case states the rule that it checks.

pub(crate) mod bus;
pub(crate) mod kv;
pub(crate) mod locks;
pub(crate) mod records;
pub(crate) mod support;
pub(crate) mod transcript;
pub(crate) mod workspace;

/// Makes a module with one test for each case: `bundle_cases!(name, crate::fresh)`, where `fresh` is an async function that returns a
/// fresh store and a guard that removes it.
macro_rules! bundle_cases {
    ($(#[$attribute:meta])* $engine:ident, $fresh:path) => {
        bundle_cases!(@rows [$(#[$attribute])*] $engine, $fresh,
            bus: [
                drained_entries_arrive_once_and_in_order,
                concurrent_consumers_receive_each_entry_once,
                unacknowledged_entries_are_read_again,
                log_is_replayed_from_any_entry,
                log_stays_near_its_cap,
                subscriber_receives_what_is_published_after_it_subscribed,
                domain_helpers_use_the_agreed_keys,
                bad_arguments_of_the_bus_write_nothing,
                buses_of_different_owners_share_nothing,
            ],
            kv: [
                versions_start_at_one_and_grow_by_one,
                put_if_version_replaces_only_that_version,
                deleted_item_is_never_replaced_by_its_version,
                concurrent_puts_get_distinct_versions,
                search_finds_a_namespace_and_those_beneath_it,
                pages_by_cursor_and_by_offset_list_every_item_once,
                values_keep_their_text,
                items_of_different_owners_are_apart,
                bad_arguments_of_items_write_nothing,
                damaged_item_is_corrupt,
            ],
            locks: [
                lock_has_one_holder_and_growing_fencing_tokens,
                renewal_keeps_the_fencing_token,
                only_the_owner_releases_a_lock,
                waiter_acquires_a_released_lock,
                concurrent_holders_never_overlap,
                guard_releases_its_lock,
                bad_arguments_of_locks_are_refused,
            ],
            records: [
                tool_run_ends_once,
                stale_tool_runs_are_those_of_the_session_that_still_run,
                task_keeps_creation_cancel_request_and_delivery,
                task_that_ended_does_not_run_again,
                delivery_is_recorded_once,
                heartbeat_keeps_running_tasks_and_orphans_fail,
                snapshot_is_read_back_whole_or_refused,
                replaced_snapshot_leaves_no_parts,
                damaged_records_are_corrupt,
            ],
            transcript: [
                repeated_append_adds_nothing,
                entries_of_every_type_keep_their_text,
                two_writers_lose_nothing,
                large_entries_are_kept_aside_and_read_back,
                append_writes_only_new_entries,
                segments_are_stable_and_import_once,
                changed_entry_is_refused,
                removed_transcript_is_empty,
                bad_entries_are_refused,
            ],
            workspace: [
                every_route_is_kept_where_its_scope_says,
                deleted_and_moved_templates_are_hidden_for_their_scope_only,
                moves_between_routes_copy_every_byte,
                missing_identity_is_refused_unless_anonymous_calls_are_allowed,
                paths_without_a_route_stay_local,
                concurrent_edits_of_a_shared_file_are_all_kept,
            ],
        );
    };
    (@rows $attributes:tt $engine:ident, $fresh:path, $($group:ident: [$($case:ident),* $(,)?],)*) => {
        mod $engine {
            $($(bundle_cases!(@case $attributes $group, $case, $fresh);)*)*
        }
    };
    (@case [$(#[$attribute:meta])*] $group:ident, $case:ident, $fresh:path) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        $(#[$attribute])*
        async fn $case() {
            let (store, _keep) = $fresh().await;
            crate::bundle_cases::$group::$case(store).await;
        }
    };
}
