//! The trace that a request belongs to: the W3C [trace context](https://www.w3.org/TR/trace-context/).
//!
//! A server takes the context from the request, or creates one, and handles the request within it ([`TraceContext::scope`]).
//! Requests to other servers and log records in the meantime carry the trace along ([`TraceContext::current`]). The context
//! belongs to a task; a spawned task must be given it explicitly.

use std::fmt;
use std::sync::Arc;

/// The header that names the trace and span of a request.
pub const TRACEPARENT: &str = "traceparent";

/// The header with vendor-specific data of the participants in a trace.
pub const TRACESTATE: &str = "tracestate";

/// The maximum size in bytes and number of members of a `tracestate` that is passed on.
const STATE_BYTES_MAX: usize = 512;
const STATE_MEMBERS_MAX: usize = 32;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// A span of a trace. `Display` formats it as a `traceparent` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    span: u64,
    /// Whether the participants before this one record the trace.
    is_sampled: bool,
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// Starts a new trace.
    #[expect(clippy::new_without_default, reason = "every call creates a different one")]
    pub fn new() -> Self {
        Self { trace: u128::from(random_id()) << 64 | u128::from(random_id()), span: random_id(), is_sampled: false, state: None }
    }

    /// Parses the headers of a request. Returns `None` if `traceparent` is invalid; an invalid `tracestate` is dropped.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let (head, rest) = traceparent.split_at_checked(55)?;
        let mut parts = head.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // A later version may append fields, and has the same meaning up to there.
        let ends_well = rest.is_empty() || version != "00" && rest.starts_with('-');
        let is_hex = [version, trace, span, flags].iter().all(|part| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
        let has_shape = [version.len(), trace.len(), span.len(), flags.len()] == [2, 32, 16, 2] && parts.next().is_none();
        if !ends_well || !is_hex || !has_shape || version == "ff" {
            return None;
        }
        let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        let state = tracestate.map(str::trim).filter(|state| is_state(state)).map(Arc::from);
        (trace != 0 && span != 0).then_some(Self { trace, span, is_sampled, state })
    }

    /// Returns a child span in the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { span: random_id(), ..self.clone() }
    }

    /// Returns the trace id: 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// Returns the span id: 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span)
    }

    /// Returns the `tracestate` header as received.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the span of the current task.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Runs a future as part of this span.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }
}

/// Wraps a future to be spawned, so that it keeps the current trace and `tracing` span.
pub fn carried<F: Future>(work: F) -> impl Future<Output = F::Output> + use<F> {
    let (context, span) = (TraceContext::current(), tracing::Span::current());
    let work = async move {
        match context {
            Some(context) => context.scope(work).await,
            None => work.await,
        }
    };
    tracing::Instrument::instrument(work, span)
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

/// Returns a random number for an id. It is never zero, and need not be secret. A UUID would cost a system call.
fn random_id() -> u64 {
    crate::random::number().max(1)
}

/// Returns whether some text is a valid `tracestate`: a list of keys and values.
fn is_state(text: &str) -> bool {
    let is_key = |key: &str| {
        let first = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let all = key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte));
        first && all && key.len() <= 256
    };
    let is_value = |value: &str| {
        (1..=256).contains(&value.len()) && value.bytes().all(|byte| (0x20..=0x7e).contains(&byte) && byte != b'=' && byte != b',')
    };
    let is_member = |member: &str| member.split_once('=').is_some_and(|(key, value)| is_key(key) && is_value(value));
    let members = || text.split(',').map(str::trim).filter(|member| !member.is_empty());
    text.len() <= STATE_BYTES_MAX && (1..=STATE_MEMBERS_MAX).contains(&members().count()) && members().all(is_member)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEGAL: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn illegal_traceparent_is_rejected() {
        let context = TraceContext::parse(LEGAL, Some("rojo=00f067aa0ba902b7, congo=t61 x")).expect("legal");
        assert_eq!((context.to_string().as_str(), context.state()), (LEGAL, Some("rojo=00f067aa0ba902b7, congo=t61 x")));
        let child = context.child();
        assert_eq!((child.trace_id(), child.state()), (context.trace_id(), context.state()));
        assert_ne!(child.span_id(), context.span_id());
        assert!(TraceContext::parse(&LEGAL.replace("00-4", "cc-4"), None).is_some(), "a later version");
        assert!(TraceContext::parse(&format!("{}-more", LEGAL.replace("00-4", "cc-4")), None).is_some());
        for text in [
            String::new(),
            LEGAL.to_uppercase(),
            LEGAL.replace("00-4", "ff-4"),
            format!("{LEGAL}-more"),
            format!("{}.more", LEGAL.replace("00-4", "cc-4")),
            LEGAL.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            LEGAL.replace("00f067aa0ba902b7", &"0".repeat(16)),
            LEGAL.replace('-', "_"),
            LEGAL[..54].to_owned(),
            "é".repeat(60),
        ] {
            assert_eq!(TraceContext::parse(&text, None), None, "{text}");
        }
    }

    #[test]
    fn illegal_tracestate_is_dropped() {
        for state in ["", "a", "A=1", "a=é", "=1", "a=", &"a=1,".repeat(33), &format!("a={}", "x".repeat(600))] {
            assert_eq!(TraceContext::parse(LEGAL, Some(state)).expect("legal").state(), None, "{state}");
        }
    }

    #[tokio::test]
    async fn current_returns_span_of_task() {
        assert_eq!(TraceContext::current(), None);
        let context = TraceContext::new();
        assert_eq!(TraceContext::parse(&context.to_string(), None).as_ref(), Some(&context));
        assert_eq!(context.clone().scope(async { TraceContext::current() }).await, Some(context));
    }
}
