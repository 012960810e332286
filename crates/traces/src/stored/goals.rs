//! The goals of a trace.
//!
//! The tree is one row. What the messages of a goal took is a row for each goal, which the commit of a message replaces. Cumulative
//! statistics are sums over the goals below, made when the tree is read.

use super::StoredTraces;
use super::draft::Spent;
use super::rows::{Opened, Part};
use super::text::{check_key, check_name, checked, without};
use crate::id::TraceId;
use crate::model::{Goal, GoalStats, GoalStatus, GoalTree, GoalUpdate, NewGoal, kinds};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::stored;
use treehold_core::retry::Attempts;

/// The key of the row with the tree.
pub(super) const TREE: &str = "tree";

/// The fields of a goal, of its statistics and of a tree. No other field has one of these names.
const GOAL_FIELDS: &[&str] =
    &["id", "parent_id", "type", "description", "reason", "status", "summary", "self_stats", "cumulative_stats", "sub_trace_ids"];
const STATS_FIELDS: &[&str] = &["message_count", "total_tokens", "total_cost"];
const TREE_FIELDS: &[&str] = &["mission", "current_id", "goals"];

/// Returns the key of what the messages of a goal took.
pub(super) fn totals_key(goal: &str) -> String {
    format!("goal\u{1}{goal}")
}

/// What the messages of a goal took.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct GoalTotals {
    messages: u64,
    tokens: u64,
    cost: f64,
}

impl GoalTotals {
    /// Returns the totals with a change, or `None` if they would not fit.
    pub(super) fn with(self, spent: Spent) -> Option<Self> {
        let sum = |total: u64, change: i128| u64::try_from((i128::from(total) + change).max(0)).ok();
        Some(Self {
            messages: sum(self.messages, spent.messages.into())?,
            tokens: sum(self.tokens, spent.tokens)?,
            cost: (self.cost + spent.cost).max(0.0),
        })
    }

    fn and(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_add(other.messages),
            tokens: self.tokens.saturating_add(other.tokens),
            cost: self.cost + other.cost,
        }
    }

    fn write_to(self, stats: &mut GoalStats) {
        (stats.message_count, stats.total_tokens, stats.total_cost) = (self.messages, self.tokens, self.cost);
    }
}

impl StoredTraces {
    /// Returns the goals. Cost: three round trips.
    pub(super) async fn goal_tree(&self, id: &TraceId) -> Result<GoalTree> {
        let opened = self.find_existing(id).await?;
        let mut tree = self.tree(&opened).await?;
        self.fill(&opened, &mut tree).await?;
        Ok(tree)
    }

    /// Replaces the goals.
    pub(super) async fn replace_goal_tree(&self, id: &TraceId, mut tree: GoalTree) -> Result<()> {
        tree.goals.iter_mut().try_for_each(clean)?;
        tree.other = without(&tree.other, TREE_FIELDS);
        tree.current_id.as_deref().map_or(Ok(()), |goal| check_key("goal", goal))?;
        below(&tree.goals)?;
        let current = tree.current_id.take();
        let value = checked("goal tree", &tree, self.options().goal_tree_bytes_max)?;
        let mut attempts = Attempts::new();
        loop {
            let mut draft = self.draft(id).await?;
            let goals = draft.part(Part::Goals)?;
            draft.add(|batch| batch.put(&goals, TREE, value.clone()));
            draft.next.current_goal_id.clone_from(&current);
            draft.tell(kinds::GOAL_TREE_UPDATED, [("goals", json!(tree.goals.len())), ("current_id", json!(current))])?;
            if draft.commit().await? {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    /// Adds a goal.
    pub(super) async fn put_goal(&self, id: &TraceId, new: NewGoal) -> Result<Goal> {
        let mut attempts = Attempts::new();
        loop {
            let draft = self.draft(id).await?;
            let mut tree = self.tree(&draft.opened).await?;
            let mut goal = goal_of(&new, &tree);
            clean(&mut goal)?;
            if tree.get(&goal.id).is_some() {
                let message = format!("the trace has a goal with the id `{}`; choose another id, or leave it out", goal.id);
                return Err(Error::new(ErrorKind::AlreadyExists, message).without_effect());
            }
            if let Some(parent) = goal.parent_id.as_deref().filter(|parent| tree.get(parent).is_none()) {
                return Err(no_goal(parent));
            }
            tree.goals.push(goal.clone());
            let data = [("goal_id", json!(goal.id)), ("parent_id", json!(goal.parent_id)), ("status", json!(goal.status))];
            if self.put_tree(draft, &tree, kinds::GOAL_ADDED, data).await? {
                return self.filled(id, goal).await;
            }
            attempts.lost().await?;
        }
    }

    /// Changes a goal.
    pub(super) async fn change_goal(&self, id: &TraceId, goal_id: &str, update: GoalUpdate) -> Result<Goal> {
        let GoalUpdate { status, description, summary, add_sub_trace } = update;
        let mut attempts = Attempts::new();
        loop {
            let draft = self.draft(id).await?;
            let mut tree = self.tree(&draft.opened).await?;
            let goal = tree.goals.iter_mut().find(|goal| goal.id == goal_id).ok_or_else(|| no_goal(goal_id))?;
            let before = goal.clone();
            goal.status = status.unwrap_or(goal.status);
            goal.description = description.clone().unwrap_or_else(|| goal.description.clone());
            goal.summary = summary.clone().or_else(|| goal.summary.clone());
            if let Some(trace) = add_sub_trace.as_ref().filter(|trace| !goal.sub_trace_ids.contains(trace)) {
                goal.sub_trace_ids.push(trace.clone());
            }
            let goal = goal.clone();
            if goal == before
                || self.put_tree(draft, &tree, kinds::GOAL_UPDATED, [("goal_id", json!(goal_id)), ("status", json!(goal.status))]).await?
            {
                return self.filled(id, goal).await;
            }
            attempts.lost().await?;
        }
    }

    async fn put_tree<const N: usize>(
        &self,
        mut draft: super::Draft<'_>,
        tree: &GoalTree,
        kind: &str,
        data: [(&'static str, Value); N],
    ) -> Result<bool> {
        let goals = draft.part(Part::Goals)?;
        let value = checked("goal tree", tree, self.options().goal_tree_bytes_max)?;
        draft.add(|batch| batch.put(&goals, TREE, value));
        draft.tell(kind, data)?;
        draft.commit().await
    }

    /// Returns a goal of the tree with its statistics.
    async fn filled(&self, id: &TraceId, goal: Goal) -> Result<Goal> {
        let tree = self.goal_tree(id).await?;
        Ok(tree.get(&goal.id).cloned().unwrap_or(goal))
    }

    /// Reads the tree without the goal at work and without statistics.
    async fn tree(&self, opened: &Opened) -> Result<GoalTree> {
        let found = self.store().get(&self.part(opened, Part::Goals)?, TREE).await?;
        found.map_or_else(|| Ok(GoalTree::default()), |item| stored("goal tree", &item.value))
    }

    /// Adds to a tree the goal at work, and the statistics.
    pub(super) async fn fill(&self, opened: &Opened, tree: &mut GoalTree) -> Result<()> {
        tree.current_id.clone_from(&opened.head.current_goal_id);
        if tree.goals.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = tree.goals.iter().map(|goal| totals_key(&goal.id)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&self.part(opened, Part::Goals)?, &keys, true).await?;
        let own = found
            .into_iter()
            .map(|item| item.map_or_else(|| Ok(GoalTotals::default()), |item| stored("statistics of a goal", &item.value)));
        let own: Vec<GoalTotals> = own.collect::<Result<_>>()?;
        let mut sums = own.clone();
        for (goal, parent) in below(&tree.goals)? {
            if let Some(parent) = parent {
                sums[parent] = sums[parent].and(sums[goal]);
            }
        }
        for (goal, (own, sum)) in tree.goals.iter_mut().zip(own.into_iter().zip(sums)) {
            own.write_to(&mut goal.self_stats);
            sum.write_to(&mut goal.cumulative_stats);
        }
        Ok(())
    }
}

/// Returns the position of each goal and of its parent, every goal before its parent.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for two goals with one id, an unknown parent, and goals above themselves.
fn below(goals: &[Goal]) -> Result<Vec<(usize, Option<usize>)>> {
    let mut positions = HashMap::with_capacity(goals.len());
    for (position, goal) in goals.iter().enumerate() {
        if positions.insert(goal.id.as_str(), position).is_some() {
            return Err(Error::invalid_argument(format!("two goals have the id `{}`; ids are unique in a tree", goal.id)));
        }
    }
    let mut parents = Vec::with_capacity(goals.len());
    let mut children = vec![0_usize; goals.len()];
    for goal in goals {
        let parent = goal.parent_id.as_deref().map(|parent| {
            let unknown = || Error::invalid_argument(format!("the parent `{parent}` of the goal `{}` is not in the tree", goal.id));
            positions.get(parent).copied().ok_or_else(unknown)
        });
        let parent = parent.transpose()?;
        if let Some(parent) = parent {
            children[parent] += 1;
        }
        parents.push(parent);
    }
    let mut ordered = Vec::with_capacity(goals.len());
    let mut ready: Vec<usize> = (0..goals.len()).filter(|position| children[*position] == 0).collect();
    while let Some(goal) = ready.pop() {
        ordered.push((goal, parents[goal]));
        if let Some(parent) = parents[goal] {
            children[parent] -= 1;
            if children[parent] == 0 {
                ready.push(parent);
            }
        }
    }
    if ordered.len() < goals.len() {
        return Err(Error::invalid_argument("a goal of the tree is above itself; each goal needs a way up to a goal without a parent"));
    }
    Ok(ordered)
}

/// Checks a goal, and drops what the store keeps itself.
fn clean(goal: &mut Goal) -> Result<()> {
    check_key("goal", &goal.id)?;
    goal.kind.as_deref().map_or(Ok(()), |kind| check_name("type of the goal", kind))?;
    goal.other = without(&goal.other, GOAL_FIELDS);
    for stats in [&mut goal.self_stats, &mut goal.cumulative_stats] {
        *stats = GoalStats { other: without(&stats.other, STATS_FIELDS), ..GoalStats::default() };
    }
    Ok(())
}

fn goal_of(new: &NewGoal, tree: &GoalTree) -> Goal {
    let next_free = || tree.goals.iter().filter_map(|goal| goal.id.parse::<u64>().ok()).max().unwrap_or(0).saturating_add(1).to_string();
    Goal {
        id: new.id.clone().unwrap_or_else(next_free),
        parent_id: new.parent_id.clone(),
        kind: new.kind.clone(),
        description: new.description.clone(),
        reason: new.reason.clone(),
        status: GoalStatus::Pending,
        other: new.other.clone(),
        ..Goal::default()
    }
}

fn no_goal(goal: &str) -> Error {
    let message = format!("the trace has no goal `{}`; list its goals", goal.escape_debug());
    Error::new(ErrorKind::NotFound, message).without_effect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goals(pairs: &[(&str, Option<&str>)]) -> Vec<Goal> {
        let goal =
            |(id, parent): &(&str, Option<&str>)| Goal { id: (*id).to_owned(), parent_id: parent.map(str::to_owned), ..Goal::default() };
        pairs.iter().map(goal).collect()
    }

    #[test]
    fn goals_come_before_their_parents_in_any_order_of_the_tree() {
        for pairs in [&[("1", None), ("2", Some("1")), ("3", Some("2"))][..], &[("3", Some("2")), ("2", Some("1")), ("1", None)]] {
            let ordered = below(&goals(pairs)).expect("a tree");
            let ids: Vec<&str> = ordered.iter().map(|(position, _)| pairs[*position].0).collect();
            assert_eq!(ids, ["3", "2", "1"]);
        }
    }

    #[test]
    fn trees_with_circles_unknown_parents_or_equal_ids_are_refused() {
        for pairs in [&[("1", Some("1"))][..], &[("1", Some("2")), ("2", Some("1"))], &[("1", Some("9"))], &[("1", None), ("1", None)]] {
            assert_eq!(below(&goals(pairs)).expect_err("no tree").kind(), ErrorKind::InvalidArgument, "{pairs:?}");
        }
    }
}
