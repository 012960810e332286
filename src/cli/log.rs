//! The log of a server: `tracing` events of the library, one per line on standard error.
//!
//! A line has the time, the level, the trace id and the event. Spans are not recorded here.

use crate::cli::args::Global;
use crate::cli::terminal::{shown, shown_json};
use crate::trace::TraceContext;
use serde_json::{Map, Value};
use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Starts logging: warnings by default, also requests with `--verbose`, only errors with `--quiet`.
pub(crate) fn begin(global: &Global) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => Level::ERROR,
        (_, true) => Level::INFO,
        _ => Level::WARN,
    };
    // Keep a subscriber that was installed earlier.
    let _ = tracing::subscriber::set_global_default(Log { level, is_json: global.is_json() });
}

struct Log {
    level: Level,
    is_json: bool,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level && metadata.target().starts_with("treehold")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut told = Told::default();
        event.record(&mut told);
        let level = event.metadata().level().as_str();
        let trace = TraceContext::current().map(|context| context.trace_id());
        let mut line = match self.is_json {
            true => shown_json(told.json(level, trace).into_bytes()),
            false => shown(&told.text(level, trace), true).as_bytes().to_vec(),
        };
        line.push(b'\n');
        // A closed log must not stop the server.
        let _ = std::io::stderr().lock().write_all(&line);
    }
}

/// The content of an event.
#[derive(Default)]
struct Told {
    message: String,
    fields: Map<String, Value>,
}

impl Told {
    fn text(self, level: &str, trace: Option<String>) -> String {
        let mut line = format!("{} {level:5} {}", now(), self.message);
        for (name, value) in trace.map(|trace| ("trace_id".to_owned(), Value::String(trace))).into_iter().chain(self.fields) {
            let _ = match value {
                // Quoted with escapes, so that no value starts a new line.
                Value::String(text) if text.contains(|letter: char| letter.is_control() || letter.is_whitespace() || letter == '"') => {
                    write!(line, " {name}={text:?}")
                }
                Value::String(text) => write!(line, " {name}={text}"),
                value => write!(line, " {name}={value}"),
            };
        }
        line
    }

    fn json(self, level: &str, trace: Option<String>) -> String {
        let mut line = Map::new();
        line.insert("time".to_owned(), now().into());
        line.insert("level".to_owned(), level.into());
        line.insert("message".to_owned(), self.message.into());
        line.extend(trace.map(|trace| ("trace_id".to_owned(), trace.into())));
        line.extend(self.fields);
        Value::Object(line).to_string()
    }

    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text.replace(char::is_control, " "),
            (name, value) => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

/// Returns the current time, to the millisecond.
fn now() -> String {
    jiff::Timestamp::try_from(SystemTime::now()).map(|time| format!("{time:.3}")).unwrap_or_default()
}
