//! The goals of a trace.

use super::super::exchange::{Answer, Asked, json};
use super::Fields;
use crate::rights::Access;
use axum::http::StatusCode;
use treehold_traces::{GoalTree, GoalUpdate, NewGoal};

pub(super) async fn get(asked: Asked) -> Answer {
    let at = asked.trace(Access::Read)?;
    json(StatusCode::OK, at.store.get_goal_tree(&at.trace).await?).await
}

pub(super) async fn replace(mut asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let Fields(tree): Fields<GoalTree> = asked.json_value().await?;
    at.store.update_goal_tree(&at.trace, tree).await?;
    json(StatusCode::OK, at.store.get_goal_tree(&at.trace).await?).await
}

pub(super) async fn add(mut asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let goal: NewGoal = asked.fields().await?;
    json(StatusCode::CREATED, at.store.add_goal(&at.trace, goal).await?).await
}

pub(super) async fn update(mut asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let update: GoalUpdate = asked.fields().await?;
    json(StatusCode::OK, at.store.update_goal(&at.trace, asked.param("goal"), update).await?).await
}
