//! A model behind an HTTP endpoint in the form of OpenAI's `/v1/embeddings`, as most model servers offer it.

use crate::address::is_loopback;
use crate::network::{tls, unreached};
use crate::transport::Failure;
use async_trait::async_trait;
use futures::StreamExt;
use http::StatusCode;
use parking_lot::Mutex;
use reqwest::{Client, Url, redirect};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_tree::layer::{EmbeddedKind, Embedder};

/// The most bytes of an answer: 64 vectors of 8,192 numbers, each of some 20 characters.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The most characters of an answer that the log repeats.
const SAID_CHARS_MAX: usize = 200;

/// How long an endpoint that is unavailable is not asked again. Searches rank by words alone meanwhile.
const PAUSE: Duration = Duration::from_secs(10);

/// How to reach an endpoint.
#[derive(Clone)]
#[non_exhaustive]
pub struct EmbeddingsOptions {
    /// The key for `Authorization: Bearer`; never shown.
    key: Option<String>,
    /// How many numbers a vector has, for models that let the caller choose. Default: the model's own choice.
    pub dimensions: Option<u32>,
    /// A text before each query, such as `search_query: `, which some models need. Default none.
    pub query_prefix: String,
    /// A text before each passage, such as `search_document: `. Default none.
    pub passage_prefix: String,
    /// The time limit for one call. Default 20 s.
    pub timeout: Duration,
    /// Whether to allow `http` to another host, which sends texts and the key unencrypted. Default false.
    pub plain_http: bool,
}

impl Default for EmbeddingsOptions {
    fn default() -> Self {
        Self {
            key: None,
            dimensions: None,
            query_prefix: String::new(),
            passage_prefix: String::new(),
            timeout: Duration::from_secs(20),
            plain_http: false,
        }
    }
}

impl EmbeddingsOptions {
    /// Uses no key and no prefixes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets how many numbers a vector has.
    #[must_use]
    pub fn with_dimensions(mut self, dimensions: u32) -> Self {
        self.dimensions = Some(dimensions);
        self
    }

    /// Sets the texts before queries and before passages.
    #[must_use]
    pub fn with_prefixes(mut self, query: impl Into<String>, passage: impl Into<String>) -> Self {
        (self.query_prefix, self.passage_prefix) = (query.into(), passage.into());
        self
    }

    /// Sets the time limit for one call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets whether to allow `http` to another host.
    #[must_use]
    pub fn with_plain_http(mut self, plain_http: bool) -> Self {
        self.plain_http = plain_http;
        self
    }
}

impl fmt::Debug for EmbeddingsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingsOptions")
            .field("has_key", &self.key.is_some())
            .field("dimensions", &self.dimensions)
            .field("query_prefix", &self.query_prefix)
            .field("passage_prefix", &self.passage_prefix)
            .field("timeout", &self.timeout)
            .field("plain_http", &self.plain_http)
            .finish()
    }
}

/// A model behind an HTTP endpoint: OpenAI's own, Ollama, vLLM, llama.cpp, LM Studio, Text Embeddings Inference and others.
///
/// Texts are sent as `{"model": …, "input": […]}`, and `data[].embedding` is read. Redirects are not followed. Answers are bounded and
/// checked. While the endpoint is unavailable (it cannot be reached, answers too late, or with 429 or 5xx), it is asked every ten seconds at
/// most, so that searches do not wait for it again and again. An endpoint that refuses a text stays available: 500 for passages counts as a
/// refusal, since some servers answer so to a text that is too long.
///
/// One client serves all tenants, so errors name a kind and an HTTP status. The URL and the start of a refusal are in the log, as `tracing`
/// events at the level `DEBUG`, without the key.
pub struct EmbeddingsClient {
    client: Client,
    url: Url,
    /// The name of the model, and what else a vector depends on.
    identity: String,
    /// The name that is sent.
    sent_name: String,
    options: EmbeddingsOptions,
    /// Why the endpoint is unavailable, and when it may be asked again.
    failed: Mutex<Option<(Instant, ErrorKind, String)>>,
}

/// A call.
#[derive(Serialize)]
struct Request<'r> {
    model: &'r str,
    input: Vec<Cow<'r, str>>,
    encoding_format: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u32>,
}

/// An answer.
#[derive(Deserialize)]
struct Reply {
    data: Vec<ReplyVector>,
}

#[derive(Deserialize)]
struct ReplyVector {
    #[serde(default)]
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl EmbeddingsClient {
    /// Uses a model behind an endpoint, such as `https://api.openai.com/v1/embeddings`. Sends nothing yet.
    ///
    /// # Errors
    /// As [`EmbeddingsClient::check_url`]; [`InvalidArgument`](ErrorKind::InvalidArgument) for a model without a name or a key that no header
    /// can carry; [`Unavailable`](ErrorKind::Unavailable) if the system has no root certificates.
    pub fn new(url: &str, model: impl Into<String>, options: EmbeddingsOptions) -> Result<Self> {
        let (url, model) = (checked_url(url, options.plain_http)?, model.into());
        if model.is_empty() {
            return Err(Error::invalid_argument("the embedding model has no name; write the one that the endpoint knows"));
        }
        if options.key.as_deref().is_some_and(|key| http::HeaderValue::from_str(&format!("Bearer {key}")).is_err()) {
            return Err(Error::invalid_argument("the key of the embedding endpoint has characters that no header can carry"));
        }
        let is_encrypted = url.scheme() == "https";
        let builder = Client::builder()
            .user_agent(concat!("treehold/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls(is_encrypted)?)
            .connect_timeout(Duration::from_secs(5))
            .timeout(options.timeout)
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false);
        // Unencrypted requests must not go through a proxy that an environment variable names.
        let builder = if is_encrypted { builder } else { builder.no_proxy() };
        let client = builder.build().map_err(|error| Error::new(ErrorKind::Internal, "the client cannot be set up").with_source(error))?;
        // Vectors of another model, endpoint, length or prefix are not compared. Only the first line is shown.
        let identity = format!("{model}\n{url}\n{}\n{}", options.dimensions.unwrap_or_default(), options.passage_prefix);
        Ok(Self { client, url, identity, sent_name: model, options, failed: Mutex::new(None) })
    }

    /// Checks the URL of an endpoint without contacting it.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL that is not `http` or `https`, has a user, a query or a fragment, or would
    /// send texts unencrypted.
    pub fn check_url(url: &str, plain_http: bool) -> Result<()> {
        checked_url(url, plain_http).map(drop)
    }

    async fn ask(&self, texts: &[&str], kind: EmbeddedKind) -> Result<Vec<Vec<f32>>> {
        let prefix = match kind {
            EmbeddedKind::Query => &self.options.query_prefix,
            EmbeddedKind::Passage => &self.options.passage_prefix,
        };
        let with_prefix =
            |text: &&'_ str| if prefix.is_empty() { Cow::Owned((*text).to_owned()) } else { Cow::Owned(format!("{prefix}{text}")) };
        let input = texts.iter().map(with_prefix).collect();
        let request = Request { model: &self.sent_name, input, encoding_format: "float", dimensions: self.options.dimensions };
        let body = serde_json::to_vec(&request).expect("requests always serialize");
        let mut builder = self.client.post(self.url.clone()).header("content-type", "application/json").body(body);
        if let Some(key) = &self.options.key {
            builder = builder.bearer_auth(key);
        }
        let response = builder.send().await.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        let mut answer = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            answer.extend_from_slice(&chunk.map_err(|error| self.unreachable(error))?);
            if answer.len() > ANSWER_BYTES_MAX {
                return Err(error_of(ErrorKind::Internal, format_args!("answered with over {ANSWER_BYTES_MAX} bytes")));
            }
        }
        if status != StatusCode::OK {
            return Err(self.refused(status, &answer, kind));
        }
        let reply: Reply = serde_json::from_slice(&answer).map_err(|error| {
            tracing::debug!(url = %self.url, %error, answer = self.start_of(&answer), "the embedding endpoint sent no embeddings");
            error_of(ErrorKind::Internal, format_args!("sent no embeddings"))
        })?;
        vectors_of(reply, texts.len())
    }

    fn unreachable(&self, error: reqwest::Error) -> Error {
        let unreached = unreached(error);
        tracing::debug!(url = %self.url, error = &unreached as &dyn std::error::Error, "the embedding endpoint is unavailable");
        let what = match unreached.failure() {
            Failure::TimedOut => "did not answer in time",
            Failure::Broken => "closed the connection before it answered",
            _ => "cannot be reached",
        };
        error_of(ErrorKind::Unavailable, format_args!("{what}")).with_source(unreached)
    }

    /// Makes the error of a refusal, which repeats nothing of the answer.
    fn refused(&self, status: StatusCode, answer: &[u8], kind: EmbeddedKind) -> Error {
        tracing::debug!(url = %self.url, %status, answer = self.start_of(answer), "the embedding endpoint refused");
        let kind = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::PermissionDenied,
            StatusCode::NOT_FOUND => ErrorKind::NotFound,
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => ErrorKind::InvalidArgument,
            StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::TooLarge,
            StatusCode::INTERNAL_SERVER_ERROR if kind == EmbeddedKind::Passage => ErrorKind::Internal,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => ErrorKind::Unavailable,
            status if status.is_server_error() => ErrorKind::Unavailable,
            _ => ErrorKind::Unsupported,
        };
        let hint = match kind {
            ErrorKind::PermissionDenied => "; check its key",
            ErrorKind::NotFound => "; check its URL and the name of the model",
            _ => "",
        };
        error_of(kind, format_args!("answered {status}{hint}"))
    }

    /// Returns the start of an answer for the log, on one line and without the key.
    fn start_of(&self, answer: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(answer).into_owned();
        // Before it is cut, so that no part of the key is left.
        if let Some(key) = self.options.key.as_deref().filter(|key| !key.is_empty()) {
            text = text.replace(key, "…");
        }
        text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(SAID_CHARS_MAX).collect()
    }
}

/// Checks an answer and puts its vectors in the order of the texts.
fn vectors_of(reply: Reply, count: usize) -> Result<Vec<Vec<f32>>> {
    if reply.data.len() != count {
        return Err(error_of(ErrorKind::Internal, format_args!("sent {} vectors for {count} texts", reply.data.len())));
    }
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; count];
    let length = reply.data.first().map_or(0, |first| first.embedding.len());
    for (at, vector) in reply.data.into_iter().enumerate() {
        let numbers = vector.embedding;
        if numbers.len() != length || numbers.is_empty() || !numbers.iter().all(|number| number.is_finite()) {
            return Err(error_of(ErrorKind::Internal, format_args!("sent vectors of different lengths, or not of numbers")));
        }
        match vectors.get_mut(vector.index.unwrap_or(at)) {
            Some(place @ None) => *place = Some(numbers),
            _ => return Err(error_of(ErrorKind::Internal, format_args!("sent two vectors for one text"))),
        }
    }
    Ok(vectors.into_iter().flatten().collect())
}

/// Makes an error of the endpoint. Callers of all tenants may read it, so it names no host.
fn error_of(kind: ErrorKind, what: fmt::Arguments<'_>) -> Error {
    Error::new(kind, format!("the embedding endpoint {what}"))
}

#[async_trait]
impl Embedder for EmbeddingsClient {
    fn model(&self) -> &str {
        &self.identity
    }

    async fn embed(&self, texts: &[&str], kind: EmbeddedKind) -> Result<Vec<Vec<f32>>> {
        if let Some((until, kind, message)) = &*self.failed.lock()
            && Instant::now() < *until
        {
            return Err(Error::new(*kind, message.clone()));
        }
        let embedded = self.ask(texts, kind).await;
        match &embedded {
            Ok(_) => *self.failed.lock() = None,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                *self.failed.lock() = Some((Instant::now() + PAUSE, error.kind(), error.message().to_owned()));
            }
            // It answers, if not as wanted.
            Err(_) => {}
        }
        embedded
    }
}

impl fmt::Debug for EmbeddingsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingsClient")
            .field("url", &self.url.as_str())
            .field("model", &self.sent_name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

fn checked_url(text: &str, plain_http: bool) -> Result<Url> {
    let refused =
        |why: &str| Err(Error::invalid_argument(format!("the URL of the embedding endpoint {why}; write `https://HOST/v1/embeddings`")));
    let Ok(url) = Url::parse(text) else { return refused("is invalid") };
    if !matches!(url.scheme(), "http" | "https") {
        return refused("must use `https` or `http`");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refused("must not contain a user; configure its key separately");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return refused("must not have a query or a fragment");
    }
    let Some(host) = url.host_str() else { return refused("has no host") };
    if url.scheme() == "http" && !plain_http && !is_loopback(host) {
        return Err(Error::invalid_argument(format!(
            "`http://{host}` would receive texts and the key unencrypted; use `https`, or allow this with `plain_http = true`"
        )));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_masked_before_an_answer_is_cut() {
        let key = "k".repeat(40);
        let options = EmbeddingsOptions::new().with_key(&key);
        let client = EmbeddingsClient::new("http://127.0.0.1:1/v1/embeddings", "toy", options).expect("a client");
        for before in 0..=SAID_CHARS_MAX {
            let said = client.start_of(format!("{}{key}\nafter", "é".repeat(before)).as_bytes());
            assert!(!said.contains('k') && said.chars().count() <= SAID_CHARS_MAX && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn error_of_any_status_names_the_status_alone() {
        let options = EmbeddingsOptions::new().with_key("sesame").with_plain_http(true);
        let client = EmbeddingsClient::new("http://models.internal:8080/v1/embeddings", "toy", options).expect("a client");
        for code in 300..600 {
            let status = StatusCode::from_u16(code).expect("a status");
            for kind in [EmbeddedKind::Query, EmbeddedKind::Passage] {
                let error = client.refused(status, b"the text of another tenant, and sesame", kind);
                let message = error.message();
                assert!(message.starts_with(&format!("the embedding endpoint answered {status}")), "{message}");
                assert!(!["tenant", "sesame", "internal:8080"].iter().any(|part| message.contains(part)), "{message}");
                let is_of_text = code < 500 && ![408, 425, 429].contains(&code) || code == 500 && kind == EmbeddedKind::Passage;
                assert_eq!(error.kind() != ErrorKind::Unavailable, is_of_text, "{status} {kind:?}");
            }
        }
    }
}
