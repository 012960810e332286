//! Goals and their statistics.

use super::*;
use serde_json::json;

fn goal(id: &str, parent: Option<&str>) -> Goal {
    Goal { id: id.to_owned(), parent_id: parent.map(str::to_owned), description: format!("goal {id}"), ..Goal::default() }
}

async fn tree(traces: &Subject, trace: &TraceAddress) -> GoalTree {
    traces.get_goal_tree(trace).await.expect("readable")
}

/// Returns the own and the cumulative statistics of each goal.
async fn stats(traces: &Subject, trace: &TraceAddress) -> Vec<(String, (u64, u64, f64), (u64, u64, f64))> {
    let numbers = |stats: &GoalStats| (stats.message_count, stats.total_tokens, stats.total_cost);
    let goals = tree(traces, trace).await.goals;
    goals.iter().map(|goal| (goal.id.clone(), numbers(&goal.self_stats), numbers(&goal.cumulative_stats))).collect()
}

pub(super) async fn goals_form_a_tree_with_free_ids(traces: Subject) {
    let trace = begin(&traces).await;
    assert_eq!(tree(&traces, &trace).await, GoalTree::default());
    let first = traces.add_goal(&trace, NewGoal::new("boil water")).await.expect("added");
    assert_eq!((first.id.as_str(), first.status, first.description.as_str()), ("1", GoalStatus::Pending, "boil water"));
    let second = traces.add_goal(&trace, NewGoal::new("find a kettle").with_parent("1")).await.expect("added");
    assert_eq!((second.id.as_str(), second.parent_id.as_deref()), ("2", Some("1")));
    let mut own = NewGoal { id: Some("2.1".to_owned()), kind: Some("agent_call".to_owned()), ..NewGoal::new("x").with_parent("2") };
    own.other.insert("colour".to_owned(), json!("red"));
    traces.add_goal(&trace, own).await.expect("added");
    let goals = tree(&traces, &trace).await.goals;
    assert_eq!(goals.iter().map(|goal| goal.id.as_str()).collect::<Vec<_>>(), ["1", "2", "2.1"]);
    assert_eq!((goals[2].kind.as_deref(), goals[2].other.get("colour")), (Some("agent_call"), Some(&json!("red"))));
    for (new, kind) in [
        (NewGoal { id: Some("1".to_owned()), ..NewGoal::new("x") }, ErrorKind::AlreadyExists),
        (NewGoal::new("x").with_parent("9"), ErrorKind::NotFound),
        (NewGoal { id: Some(String::new()), ..NewGoal::new("x") }, ErrorKind::InvalidArgument),
        (NewGoal { id: Some("a\nb".to_owned()), ..NewGoal::new("x") }, ErrorKind::InvalidArgument),
    ] {
        assert_eq!(traces.add_goal(&trace, new.clone()).await.map(drop).expect_err("refused").kind(), kind, "{new:?}");
    }
    assert_eq!(tree(&traces, &trace).await.goals, goals);
}

pub(super) async fn goal_statistics_are_sums_of_their_messages(traces: Subject) {
    let trace = begin(&traces).await;
    // The goals of a tree may stand in any order, so a child may come first.
    let goals = vec![goal("1.1.1", Some("1.1")), goal("1", None), goal("1.1", Some("1")), goal("2", None)];
    traces.update_goal_tree(&trace, GoalTree { goals, ..GoalTree::default() }).await.expect("replaced");
    let message = |goal: &str, tokens, cost| NewMessage::text("assistant", "x").with_goal(goal).with_usage(tokens, cost);
    add(&traces, &trace, vec![message("1", 1, 0.5), message("1.1", 10, 0.25), message("1.1.1", 100, 4.0)]).await;
    add(&traces, &trace, vec![message("1.1.1", 100, 4.0).with_branch_type("reflection"), message("unknown", 7, 7.0)]).await;
    let expected = [
        ("1.1.1", (2, 200, 8.0), (2, 200, 8.0)),
        ("1", (1, 1, 0.5), (4, 211, 8.75)),
        ("1.1", (1, 10, 0.25), (3, 210, 8.25)),
        ("2", (0, 0, 0.0), (0, 0, 0.0)),
    ];
    assert_eq!(stats(&traces, &trace).await, expected.map(|(id, own, sum)| (id.to_owned(), own, sum)));
    let added = traces.add_goal(&trace, NewGoal { id: Some("unknown".to_owned()), ..NewGoal::new("x") }).await.expect("added");
    assert_eq!(added.self_stats.message_count, 1, "a goal that is added later has its messages");
}

pub(super) async fn changed_goal_keeps_everything_else(traces: Subject) {
    let trace = begin(&traces).await;
    traces.add_goal(&trace, NewGoal { reason: Some("thirst".to_owned()), ..NewGoal::new("boil water") }).await.expect("added");
    let sub: TraceAddress = "@laptop/sub".parse().expect("legal");
    let update = GoalUpdate {
        status: Some(GoalStatus::Completed),
        summary: Some("it boils".to_owned()),
        add_sub_trace: Some(sub.clone()),
        ..GoalUpdate::default()
    };
    let changed = traces.update_goal(&trace, "1", update.clone()).await.expect("changed");
    assert_eq!((changed.status, changed.summary.as_deref()), (GoalStatus::Completed, Some("it boils")));
    assert_eq!((changed.description.as_str(), changed.reason.as_deref()), ("boil water", Some("thirst")));
    assert_eq!(changed.sub_trace_ids.len(), 1);
    assert_eq!(changed.sub_trace_ids[0].id(), sub.id());
    let count = events(&traces, &trace).await.len();
    assert_eq!(traces.update_goal(&trace, "1", update).await.expect("nothing to do"), changed);
    assert_eq!(events(&traces, &trace).await.len(), count, "the same again is no change");
    let unknown = traces.update_goal(&trace, "9", GoalUpdate::default()).await.map(drop);
    assert_eq!(unknown.expect_err("unknown").kind(), ErrorKind::NotFound);
}

pub(super) async fn replaced_tree_keeps_the_statistics(traces: Subject) {
    let trace = begin(&traces).await;
    traces.add_goal(&trace, NewGoal::new("x")).await.expect("added");
    add(&traces, &trace, vec![NewMessage::text("assistant", "x").with_goal("1").with_usage(5, 0.5)]).await;
    let mut claimed = goal("1", None);
    claimed.self_stats = GoalStats { message_count: 99, total_tokens: 99, total_cost: f64::MAX, ..GoalStats::default() };
    claimed.self_stats.other.insert("preview".to_owned(), json!("a → b"));
    let mut replacement = GoalTree { mission: "tea".to_owned(), goals: vec![claimed, goal("2", Some("1"))], ..GoalTree::default() };
    replacement.other.insert("kept".to_owned(), json!(1));
    traces.update_goal_tree(&trace, replacement).await.expect("replaced");
    assert_eq!(stats(&traces, &trace).await[0], ("1".to_owned(), (1, 5, 0.5), (1, 5, 0.5)), "the store counts itself");
    let now = tree(&traces, &trace).await;
    assert_eq!((now.mission.as_str(), now.other.get("kept")), ("tea", Some(&json!(1))));
    assert_eq!(now.goals[0].self_stats.other.get("preview"), Some(&json!("a → b")));
    traces.update_goal_tree(&trace, now.clone()).await.expect("replaced");
    assert_eq!(tree(&traces, &trace).await, now, "a tree that was read can be written back");
}

pub(super) async fn trees_that_are_no_trees_are_refused(traces: Subject) {
    let trace = begin(&traces).await;
    traces.add_goal(&trace, NewGoal::new("x")).await.expect("added");
    let before = (tree(&traces, &trace).await, get(&traces, &trace).await);
    for goals in [
        vec![goal("1", Some("1"))],
        vec![goal("1", Some("2")), goal("2", Some("1"))],
        vec![goal("1", Some("9"))],
        vec![goal("1", None), goal("1", None)],
        vec![goal("", None)],
        vec![goal("a/b", None)],
    ] {
        let shown = format!("{goals:?}");
        let refused = traces.update_goal_tree(&trace, GoalTree { goals, ..GoalTree::default() }).await;
        assert_eq!(refused.expect_err(&shown).kind(), ErrorKind::InvalidArgument, "{shown}");
    }
    assert_eq!((tree(&traces, &trace).await, get(&traces, &trace).await), before);
}

pub(super) async fn goal_at_work_is_the_same_in_trace_and_tree(traces: Subject) {
    let trace = begin(&traces).await;
    let current = async || (get(&traces, &trace).await.current_goal_id, tree(&traces, &trace).await.current_id);
    let both = |goal: Option<&str>| (goal.map(str::to_owned), goal.map(str::to_owned));
    let replacement = GoalTree { current_id: Some("1".to_owned()), goals: vec![goal("1", None), goal("2", None)], ..GoalTree::default() };
    traces.update_goal_tree(&trace, replacement).await.expect("replaced");
    assert_eq!(current().await, both(Some("1")));
    let set = |goal: &str| TraceUpdate { current_goal_id: Some(goal.to_owned()), ..TraceUpdate::new() };
    traces.update_trace(&trace, set("2")).await.expect("changed");
    assert_eq!(current().await, both(Some("2")));
    traces.update_trace(&trace, set("")).await.expect("changed");
    assert_eq!(current().await, both(None));
}
