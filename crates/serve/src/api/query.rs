//! Reads of everything except file content: stat, listings and searches. Each is a GET with a query, or a POST with the same fields as
//! JSON.

use super::exchange::{Answer, Asked, json};
use axum::http::StatusCode;
use treehold_core::wire::{CapabilitiesReply, GlobRequest, GrepRequest, LsRequest, SearchRequest, StatRequest, TreeRequest};
use treehold_tree::backend::BackendExt;

pub(super) async fn stat(mut asked: Asked) -> Answer {
    let request: StatRequest = asked.words().await?;
    json(StatusCode::OK, asked.tree().await?.stat(&request.path, &request.options()).await?).await
}

pub(super) async fn ls(mut asked: Asked) -> Answer {
    let request: LsRequest = asked.words().await?;
    let path = request.path.clone();
    let options = request.options()?;
    json(StatusCode::OK, asked.tree().await?.ls(&path, &options).await?).await
}

pub(super) async fn tree(mut asked: Asked) -> Answer {
    let request: TreeRequest = asked.words().await?;
    let request = request.checked()?;
    json(StatusCode::OK, asked.tree().await?.tree(request.path.as_str(), request.depth, request.limit).await?).await
}

pub(super) async fn glob(mut asked: Asked) -> Answer {
    let request: GlobRequest = asked.words().await?;
    let path = request.path.clone();
    let options = request.options()?;
    json(StatusCode::OK, asked.tree().await?.glob(&path, &options).await?).await
}

pub(super) async fn grep(mut asked: Asked) -> Answer {
    let request: GrepRequest = asked.words().await?;
    let path = request.path.clone();
    let options = request.options()?;
    json(StatusCode::OK, asked.tree().await?.grep(&path, &options).await?).await
}

pub(super) async fn search(mut asked: Asked) -> Answer {
    let request: SearchRequest = asked.words().await?;
    let path = request.path.clone();
    let options = request.options()?;
    json(StatusCode::OK, asked.tree().await?.search(&path, &options).await?).await
}

pub(super) async fn capabilities(asked: Asked) -> Answer {
    let tree = asked.tree().await?;
    let mounts = asked.caller.door.workspace.visible_mounts().map(ToOwned::to_owned).collect();
    json(StatusCode::OK, CapabilitiesReply::new(tree.capabilities(), mounts)).await
}
