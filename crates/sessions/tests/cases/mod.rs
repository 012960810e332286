//! The cases. Each gets a fresh store. The comment of a case states the rule that it checks.

pub(crate) mod access;
pub(crate) mod bad_input;
pub(crate) mod compaction;
pub(crate) mod consolidation;
pub(crate) mod conversation;
pub(crate) mod layout;
pub(crate) mod manager;
pub(crate) mod memo;
pub(crate) mod once;
pub(crate) mod orchestration;
pub(crate) mod removal;
pub(crate) mod support;
pub(crate) mod trace;

/// Makes a module with one test for each case: `session_cases!(name, crate::fresh)`, where `fresh` is an async function that
/// returns a fresh store and a guard that removes it.
macro_rules! session_cases {
    ($(#[$attribute:meta])* $engine:ident, $fresh:path) => {
        session_cases!(@rows [$(#[$attribute])*] $engine, $fresh,
            access: [
                restricted_sessions_hide_those_of_others,
                reads_beyond_the_limit_are_refused,
                planned_compaction_applies_to_its_window_only,
                follower_reports_changes_since_its_position,
            ],
            bad_input: [
                ids_are_kept_exactly_or_refused,
                refused_append_writes_nothing,
                session_is_hidden_from_other_users_and_tenants,
                idempotency_key_of_another_append_is_refused,
            ],
            compaction: [
                repeated_compactions_keep_the_full_history,
                window_below_the_trigger_is_not_compacted,
                fraction_of_zero_compacts_one_message,
                compaction_keeps_results_with_their_calls,
                messages_appended_during_compaction_stay_in_the_window,
                concurrent_compactions_have_one_winner,
                interrupted_compactions_add_each_summary_to_the_notes_once,
                compaction_with_failed_summary_changes_nothing,
                small_budget_omits_the_summary,
                message_that_looks_like_a_summary_stays_in_archives,
            ],
            consolidation: [
                run_is_due_after_enough_time_or_changes_or_by_request,
                run_reads_at_most_the_newest_sessions,
                concurrent_runs_after_a_failure_consolidate_once,
                request_during_a_run_makes_another_run_due,
                run_beside_another_reads_nothing,
                imported_summary_is_not_counted_as_a_message,
                document_changed_during_a_run_is_condensed_again,
                state_of_a_consolidation_has_the_json_of_hosts,
                run_overtaken_before_its_lease_is_not_due,
                run_that_lost_its_lease_writes_nothing,
                session_that_cannot_be_read_does_not_stop_the_others,
                failed_side_writes_are_errors_only_of_a_strict_orchestration,
            ],
            conversation: [
                existing_session_is_returned_unchanged,
                session_without_id_gets_a_new_one,
                unknown_session_has_no_messages_and_takes_none,
                load_with_limit_returns_the_newest_messages_in_order,
                messages_with_unknown_fields_survive_byte_for_byte,
                load_with_budget_returns_the_longest_tail_of_whole_calls,
                append_repeated_with_its_key_takes_effect_once,
                concurrent_turns_get_indexes_without_gaps,
                concurrent_appends_keep_each_batch_whole_and_in_order,
                append_with_usage_records_turn_and_time,
                sessions_of_a_user_are_listed_newest_first,
                session_recreated_after_deletion_is_empty,
                interrupted_deletion_is_finished_by_a_sweep,
                context_usage_is_of_the_last_turn,
                skill_logs_get_safe_and_distinct_names,
                damaged_session_is_corrupt_and_others_are_listed,
                descriptions_of_sessions_have_the_json_of_hosts,
                change_of_the_title_is_an_event_of_the_session,
                every_contract_is_served_through_its_trait,
            ],
            layout: [
                imported_files_are_exported_byte_for_byte,
                import_reports_damaged_lines_and_keeps_the_rest,
                sessions_move_between_stores_through_a_directory,
                consolidation_state_survives_a_move_byte_for_byte,
                archives_in_a_circle_are_expanded_once,
                numbers_out_of_range_are_reported_and_the_session_continues,
                files_under_other_names_are_kept_and_are_no_tool_results,
                missing_files_stay_missing_and_empty_files_stay_empty,
                files_beneath_files_are_refused,
                export_continues_after_a_session_that_cannot_be_written,
                export_over_the_limit_is_refused_and_written_to_a_directory,
            ],
            manager: [
                agents_process_queued_inputs_in_order,
                log_tells_dropped_inputs_and_cancelled_jobs,
                agent_is_not_spawned_again_with_another_task_or_name,
                unanswered_inputs_are_delivered_again_after_a_restart,
                unprocessed_mailbox_events_are_applied_at_the_start,
                agents_are_attached_after_a_restart,
                closing_agent_drops_queued_inputs_and_overdue_wait_times_out,
                second_manager_takes_over_only_when_the_lease_ends,
                closed_manager_hands_over_at_once,
                commit_under_a_replaced_claim_writes_nothing,
            ],
            memo: [
                documents_are_files_that_tools_can_edit,
                concurrent_document_appends_are_all_kept,
                tool_results_of_similar_ids_stay_distinct,
                shortened_results_are_read_at_the_path_that_the_view_shows,
                memory_index_describes_existing_and_missing_documents,
                writes_to_unknown_sessions_and_names_are_refused,
                store_without_memory_documents_stays_usable,
                document_never_grows_beyond_the_largest_write,
                document_that_is_not_text_is_unsupported,
                directory_with_the_name_of_a_document_blocks_nothing,
            ],
            once: [
                envelope_appended_again_with_its_key_takes_effect_once,
                commit_repeated_with_its_key_takes_effect_once,
                concurrent_repetitions_take_effect_once,
                repetition_after_a_lost_answer_finds_the_first_write,
                key_of_a_commit_does_not_replace_its_claim,
            ],
            orchestration: [
                state_recovers_from_any_checkpoint_and_the_events_after_it,
                damaged_checkpoint_is_ignored,
                mailboxes_keep_events_and_counts_for_each_agent,
                commit_with_a_bad_part_writes_nothing,
                agent_ids_that_no_call_takes_are_refused_in_every_part,
                checkpoint_of_another_log_is_dropped,
                inspector_skips_rows_that_cannot_be_read,
                agent_history_survives_byte_for_byte,
            ],
            removal: [
                session_created_during_an_import_keeps_its_notes,
                failed_import_leaves_nothing_to_a_later_session,
                sweep_during_an_import_leaves_it_alone,
                import_that_was_swept_fails_and_leaves_no_row,
                import_with_a_path_beneath_a_file_writes_nothing,
                write_overtaken_by_a_deletion_never_reaches_a_later_session,
                write_during_a_deletion_never_reaches_a_later_session,
                deletion_that_is_killed_leaves_all_files_or_none,
                deletion_beside_a_sweep_of_an_earlier_one_is_finished,
                creation_that_lost_a_race_leaves_the_id_free_for_others,
                sweep_removes_a_bounded_number_of_accessible_sessions,
                removals_of_equal_data_ids_are_kept_apart,
                summary_of_a_deleted_session_is_not_reused,
            ],
            trace: [
                envelopes_with_restarting_sequences_keep_their_order,
                append_to_the_trace_of_a_deleted_session_is_refused,
                inspector_lists_sessions_of_one_time_by_id,
                inspector_lists_all_sessions_newest_first,
                inspector_pages_list_every_session_once,
            ],
        );
    };
    (@rows $attributes:tt $engine:ident, $fresh:path, $($group:ident: [$($case:ident),* $(,)?],)*) => {
        mod $engine {
            $($(session_cases!(@case $attributes $group, $case, $fresh);)*)*
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
