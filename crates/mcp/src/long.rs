//! Long requests and answers over HTTP: parsed and written as JSON on blocking threads.
//!
//! `rmcp` parses a request in the first step of its response, so that step of a long request runs on a blocking thread ([`begun_apart`]).
//!
//! `rmcp` writes an answer as JSON wherever the response is polled, which is a thread of the runtime that serves every caller. So the
//! handler of a request marks it ([`LongAnswer::mark`]) before it returns a long answer, and from then on the response is polled on a
//! blocking thread ([`unless_long`]). Replayed streams have no handler; [`LongAnswer::marking`] looks at their messages.

use axum::body::Body;
use axum::http::request::Parts;
use axum::response::Response;
use futures::{Stream, StreamExt};
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use serde::Serialize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use treehold_core::error::Result;
use treehold_core::work::{self, Owner};

/// Whether a request has a long answer that is ready to be written. It is one of the request's extensions.
#[derive(Debug, Clone, Default)]
pub(super) struct LongAnswer(Arc<AtomicBool>);

tokio::task_local! {
    /// The mark of the request that the current task handles.
    static CURRENT: LongAnswer;
}

impl LongAnswer {
    /// Marks the request of a context if its answer is long.
    pub(super) fn mark<T: Serialize>(context: &RequestContext<RoleServer>, answer: &T) {
        if let Some(long) = context.extensions.get::<Parts>().and_then(|head| head.extensions.get::<Self>()) {
            long.mark_if(work::is_large_json(answer));
        }
    }

    fn mark_if(&self, is_long: bool) {
        if is_long {
            self.0.store(true, Ordering::Release);
        }
    }

    fn is_marked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Handles a request, whose replayed messages are marked.
    pub(super) fn during<F: Future>(&self, handle: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), handle)
    }

    /// Marks the current request before a long message of a stream is written.
    pub(super) fn marking(
        stream: impl Stream<Item = ServerSseMessage> + Send + Sync + 'static,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static {
        let long = CURRENT.try_with(Clone::clone).unwrap_or_default();
        stream.then(move |message| {
            let long = long.clone();
            async move {
                if message.message.as_ref().is_some_and(|message| work::is_large_json(&**message)) {
                    long.mark_if(true);
                    // The next poll is that of a blocking thread.
                    tokio::task::yield_now().await;
                }
                message
            }
        })
    }
}

/// Awaits a future. Once its request is marked, the rest of the future runs on a blocking thread as work of `owner`. Mark only requests
/// whose work ends soon after the answer is ready.
///
/// # Errors
/// Those of [`work::run`].
pub(super) async fn unless_long<T: Send + 'static>(
    long: &LongAnswer,
    owner: &Owner,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let mut future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    let done = std::future::poll_fn(|context| match long.is_marked() {
        true => Poll::Ready(None),
        false => future.as_mut().poll(context).map(Some),
    });
    if let Some(done) = done.await {
        return Ok(done);
    }
    let runtime = tokio::runtime::Handle::current();
    let rest = work::run(work::LARGE, move |_| runtime.block_on(future));
    work::as_owner(owner.clone(), None, rest).await
}

/// Takes the first step of a future on a blocking thread, as work of `owner`, and awaits the rest.
///
/// # Errors
/// Those of [`work::run`].
pub(super) async fn begun_apart<T: Send + 'static>(owner: &Owner, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let mut future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    let first = work::run(work::LARGE, move |_| match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Ok(done),
        // The next poll follows at once and names the waker of its own task.
        Poll::Pending => Err(future),
    });
    match work::as_owner(owner.clone(), None, first).await? {
        Ok(done) => Ok(done),
        Err(rest) => Ok(rest.await),
    }
}

/// Returns a response whose stream is polled by [`unless_long`].
pub(super) fn streamed(response: Response, long: LongAnswer, owner: Owner) -> Response {
    response.map(|body| {
        let state = Some((body.into_data_stream(), long, owner));
        Body::from_stream(futures::stream::unfold(state, |state| async move {
            let (mut parts, long, owner) = state?;
            let next = async move {
                let part = parts.next().await;
                (part, parts)
            };
            match unless_long(&long, &owner, next).await {
                Ok((part, parts)) => Some((part?.map_err(Into::into), Some((parts, long, owner)))),
                Err(error) => Some((Err::<_, axum::BoxError>(error.into()), None)),
            }
        }))
    })
}
