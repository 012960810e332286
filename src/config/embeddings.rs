//! `[embeddings]`: the model by whose vectors a search also finds by meaning.

use super::DEFAULT_STORE;
use super::check::duration;
use super::fault::Broken;
#[cfg(not(feature = "remote"))]
use super::{Config, Stores};
use serde::{Deserialize, Serialize};
#[cfg(not(feature = "remote"))]
use treehold_agent::workspace::WorkspaceBuilder;
use treehold_core::error::Result;

/// The model by whose vectors a search also finds by meaning, behind an endpoint in the form of OpenAI's `/v1/embeddings`.
///
/// Vectors are made when a search first meets a version of a file, and are kept in a store by what they were made from. The ranking by words
/// stays, and is used alone while the endpoint cannot be reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct EmbeddingsConfig {
    /// The endpoint, such as `https://api.openai.com/v1/embeddings` or `http://127.0.0.1:11434/v1/embeddings`.
    pub url: String,
    /// The name of the model, as the endpoint knows it.
    pub model: String,
    /// Where the key is: `env:VARIABLE` or `file:PATH`. By default none is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How many numbers a vector has, for models that let the caller choose. Default: the model's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<u32>,
    /// A text before each query, which some models need, such as `search_query: `. Default none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub query_prefix: String,
    /// A text before each passage, such as `search_document: `. Default none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub passage_prefix: String,
    /// The similarity that a file needs to be found by meaning alone, as a cosine from 0 to 1. Default 0.25.
    #[serde(default = "similarity_min")]
    pub similarity_min: f32,
    /// How long one call of the model may take. Default `20s`.
    #[serde(default = "timeout")]
    pub timeout: String,
    /// The store of the vectors. Default `default`.
    #[serde(default = "store")]
    pub store: String,
    /// Whether to allow `http` to another host, which sends texts and the key unencrypted. Default false.
    #[serde(default)]
    pub plain_http: bool,
}

fn similarity_min() -> f32 {
    0.25
}

fn timeout() -> String {
    "20s".to_owned()
}

fn store() -> String {
    DEFAULT_STORE.to_owned()
}

impl EmbeddingsConfig {
    /// Uses a model behind an endpoint, with the defaults.
    pub fn new(url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            model: model.into(),
            key: None,
            dimensions: None,
            query_prefix: String::new(),
            passage_prefix: String::new(),
            similarity_min: similarity_min(),
            timeout: timeout(),
            store: store(),
            plain_http: false,
        }
    }

    /// Checks each value, without contacting the endpoint.
    pub(super) fn check(&self) -> Result<(), Broken> {
        let broken = |key: &str, message: &str| Err(Broken::new(&["embeddings", key], message));
        check_url(&self.url, self.plain_http).or_else(|error| broken("url", error.message()))?;
        if self.model.is_empty() {
            return broken("model", "the model has no name; write the one that the endpoint knows");
        }
        if let Some(key) = &self.key {
            super::remote::check_token_place(key).or_else(|error| broken("key", error.message()))?;
        }
        if self.dimensions == Some(0) {
            return broken("dimensions", "a vector of 0 numbers says nothing; leave it out for the model's own choice");
        }
        if !(0.0..=1.0).contains(&self.similarity_min) {
            return broken("similarity_min", "a similarity is a number from 0 to 1");
        }
        duration(&self.timeout).map(drop).or_else(|error| broken("timeout", error.message()))
    }
}

#[cfg(feature = "remote")]
fn check_url(url: &str, plain_http: bool) -> Result<()> {
    treehold_remote::EmbeddingsClient::check_url(url, plain_http)
}

/// Without the feature `remote`, nothing is ever sent.
#[cfg(not(feature = "remote"))]
fn check_url(_url: &str, _plain_http: bool) -> Result<()> {
    Ok(())
}

#[cfg(feature = "remote")]
mod opened {
    use super::EmbeddingsConfig;
    use crate::config::check::duration;
    use crate::config::{Config, Stores};
    use async_trait::async_trait;
    use std::sync::Arc;
    use treehold_agent::workspace::WorkspaceBuilder;
    use treehold_core::error::{Error, Result};
    use treehold_core::namespace::Partition;
    use treehold_core::reserved::VECTORS;
    use treehold_core::scope::Scope;
    use treehold_remote::{EmbeddingsClient, EmbeddingsOptions};
    use treehold_tree::layer::{EmbeddedKind, Embedder, VectorCache, VectorRecall};

    /// A model whose key cannot be read. Searches say so and rank by words.
    #[derive(Debug)]
    struct Keyless {
        model: String,
        error: Error,
    }

    #[async_trait]
    impl Embedder for Keyless {
        fn model(&self) -> &str {
            &self.model
        }

        async fn embed(&self, _: &[&str], _: EmbeddedKind) -> Result<Vec<Vec<f32>>> {
            Err(Error::new(self.error.kind(), self.error.message()))
        }
    }

    impl Config {
        /// Adds search by meaning around the whole tree, where permissions inside of it have checked each file.
        pub(in crate::config) fn with_meaning(&self, workspace: WorkspaceBuilder, stores: &Stores) -> Result<WorkspaceBuilder> {
            let Some(embeddings) = &self.embeddings else { return Ok(workspace) };
            let embedder = self.embedder(embeddings)?;
            let (store, cache, similarity_min) =
                (stores.get(&embeddings.store)?, Arc::new(VectorCache::default()), embeddings.similarity_min);
            Ok(workspace.layer(move |tree, scope: &Scope| {
                let recall = VectorRecall::new(embedder.clone(), tree).with_similarity_min(similarity_min);
                // Each user's passages are kept apart, and scopes with the same fields have the same tree.
                let owner = [scope.tenant.as_deref().unwrap_or("-"), scope.user.as_deref().unwrap_or("-")];
                let recall = recall.with_cache(cache.clone(), format!("{owner:?}"), format!("{scope:?}"));
                // What cannot be a namespace is kept in memory alone.
                match Partition::new(owner).and_then(|partition| partition.namespace(VECTORS)) {
                    Ok(namespace) => Arc::new(recall.with_store(store.clone(), namespace)),
                    Err(_) => Arc::new(recall),
                }
            }))
        }

        /// Makes the client of the model. A key that cannot be read concerns searches alone.
        fn embedder(&self, embeddings: &EmbeddingsConfig) -> Result<Arc<dyn Embedder>> {
            let mut options = EmbeddingsOptions::new()
                .with_prefixes(&embeddings.query_prefix, &embeddings.passage_prefix)
                .with_timeout(duration(&embeddings.timeout)?)
                .with_plain_http(embeddings.plain_http);
            options.dimensions = embeddings.dimensions;
            if let Some(key) = &embeddings.key {
                match self.secret(key, "the key of the embedding endpoint", "`key` under `[embeddings]`") {
                    Ok(key) => options = options.with_key(key),
                    Err(error) => return Ok(Arc::new(Keyless { model: embeddings.model.clone(), error })),
                }
            }
            Ok(Arc::new(EmbeddingsClient::new(&embeddings.url, &embeddings.model, options)?))
        }
    }
}

#[cfg(not(feature = "remote"))]
impl Config {
    /// Refuses a model, which this program cannot ask.
    pub(super) fn with_meaning(&self, workspace: WorkspaceBuilder, _stores: &Stores) -> Result<WorkspaceBuilder> {
        use treehold_core::error::Error;
        match self.embeddings {
            Some(_) => {
                Err(Error::unsupported("this program was built without `remote`; build it with that feature or leave `[embeddings]` out"))
            }
            None => Ok(workspace),
        }
    }
}
