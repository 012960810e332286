//! Traces on other servers, through their HTTP API below `/api/traces`.
//!
//! - Every operation asks the registry for the client of the location, so a location works after a restart as before.
//! - Ids are stripped when they are sent to their owner, and qualified when they arrive. Traces that arrive are marked `remote`.
//! - Only an absent trace is `None`; every other failure is an error.
//! - Every change has an idempotency key that all of its attempts share, so that a lost answer has no second effect.
//! - Answers are untrusted input: bounded, and checked before use (`check`).

mod check;
mod ids;
mod watch;

use self::ids::at_home;
use crate::contract::{
    AddOptions, Added, EventStream, ForeignTrace, MessageRef, MessagesPage, MessagesQuery, PAGE_MAX, PathQuery, TracePage, TraceStore,
    TracesQuery,
};
use crate::id::{Location, TraceAddress, TraceId};
use crate::model::{
    EventsPage, Goal, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, OtherFields, Trace, TraceUpdate,
};
use crate::peers::Peers;
use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::escape::{escape_bytes, is_unreserved};
use treehold_core::work::check_json_values;
use treehold_remote::{Ask, Method, PeerClient, RefusedStatus, StatusCode};

/// The routes of traces.
const ROUTES: &str = "/api/traces";

/// The most traces of one page.
const TRACES_MAX: usize = 100;

/// The traces of other servers.
///
/// Made by [`RemoteTraces::new`], it reaches every place of its registry, and every id must be qualified. Made by [`RemoteTraces::at`], it
/// stands for one place: ids without a location are of that place, traces are created there, and
/// [`list_traces`](TraceStore::list_traces) lists its traces.
#[derive(Debug, Clone)]
pub struct RemoteTraces {
    peers: Peers,
    home: Option<Location>,
    own: Option<Location>,
}

/// A trace elsewhere, with the client of its owner.
#[derive(Debug, Clone)]
struct Place {
    peers: Peers,
    client: PeerClient,
    location: Location,
    own: Option<Location>,
    id: TraceId,
}

/// The answer to an event.
#[derive(Deserialize)]
struct EventAdded {
    event_id: u64,
}

/// The request to append messages.
#[derive(Serialize)]
struct Append<'a> {
    messages: &'a [NewMessage],
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_head: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    update: Option<&'a TraceUpdate>,
}

impl RemoteTraces {
    /// Reaches every place of a registry.
    pub fn new(peers: Peers) -> Self {
        Self { peers, home: None, own: None }
    }

    /// Stands for one place.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument), with the source [`UnknownAgent`](crate::UnknownAgent), for a location that is not
    /// registered.
    pub fn at(peers: Peers, location: Location) -> Result<Self> {
        peers.check(&location)?;
        Ok(Self { peers, home: Some(location), own: None })
    }

    /// Sets the location under which the others know this place. With it, local ids that are sent to them are qualified, and ids that come
    /// home become local.
    #[must_use]
    pub fn with_own_location(mut self, location: Location) -> Self {
        self.own = Some(location);
        self
    }

    /// Returns the owner of a trace. All operations come here, so each makes the client if there is none yet.
    async fn place(&self, trace: &TraceAddress) -> Result<Place> {
        let Some(location) = at_home(trace, self.home.as_ref()) else {
            let message = format!("`{trace}` is a trace of this place, and was looked for elsewhere; write `@AGENT/ID` for another place");
            return Err(Error::invalid_argument(message).without_effect());
        };
        if self.home.as_ref().is_some_and(|home| !self.peers.is_same(home, &location)) {
            let message = format!("`{trace}` is not a trace of `{}`", self.home.as_ref().unwrap_or(&location));
            return Err(Error::invalid_argument(message).without_effect());
        }
        self.place_at(location, trace.id().clone()).await
    }

    async fn place_at(&self, location: Location, id: TraceId) -> Result<Place> {
        let client = self.peers.client(&location).await?;
        Ok(Place { peers: self.peers.clone(), client, location, own: self.own.clone(), id })
    }
}

impl Place {
    /// Returns the path of the trace, or of a part of it.
    fn path(&self, part: &str) -> String {
        format!("{ROUTES}/{}{part}", encoded(self.id.as_str()))
    }

    /// Sends a request and reads its answer.
    async fn ask<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T> {
        let answer = self.client.ask(ask).await.map_err(as_received)?;
        self.parsed(&answer)
    }

    /// Asks for a page, and for a smaller one while its answer is too large to be taken. Returns the page and how many entries were asked for.
    ///
    /// An owner ends pages at a number of bytes, whatever they hold, so a page of sound messages can have more values than are taken at once.
    async fn page<T: DeserializeOwned>(&self, path: &str, limit: usize) -> Result<(T, usize)> {
        let mut limit = limit;
        loop {
            let mut path = path.to_owned();
            with_parameter(&mut path, "limit", &limit.to_string());
            match self.ask(&Ask::get(path)).await {
                Err(error) if limit > 1 && is_too_much(&error) => limit /= 2,
                page => return page.map(|page| (page, limit)),
            }
        }
    }

    /// Sends a request about something that may be absent.
    async fn find<T: DeserializeOwned>(&self, ask: &Ask) -> Result<Option<T>> {
        match self.client.ask(ask).await {
            Ok(answer) => self.parsed(&answer).map(Some),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(as_received(error)),
        }
    }

    fn parsed<T: DeserializeOwned>(&self, answer: &treehold_remote::Answer) -> Result<T> {
        check_json_values(&answer.body).map_err(|error| self.invalid("too many values").with_source(error))?;
        self.client.json(answer)
    }

    /// Returns the path of a message or goal.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that no path can contain.
    fn part(&self, collection: &str, id: &str) -> Result<String> {
        if matches!(id, "" | "." | "..") {
            return Err(Error::invalid_argument(format!("`{id}` is not an id in `{collection}`")).without_effect());
        }
        Ok(self.path(&format!("/{collection}/{}", encoded(id))))
    }

    fn message_path(&self, message: &MessageRef) -> Result<String> {
        match message {
            MessageRef::Id(id) => self.part("messages", id),
            MessageRef::Sequence(sequence) => Ok(self.path(&format!("/messages/{sequence}?by=sequence"))),
        }
    }

    /// Returns whether a message is the one that was meant.
    fn check_meant(&self, message: &Message, meant: &MessageRef) -> Result<()> {
        self.check_message(message)?;
        let is_meant = match meant {
            MessageRef::Id(id) => message.message_id == *id,
            MessageRef::Sequence(sequence) => message.sequence == *sequence,
        };
        if is_meant { Ok(()) } else { Err(self.invalid("another message")) }
    }
}

/// Percent-encodes one segment of a path or one value of a query.
fn encoded(text: &str) -> String {
    escape_bytes(text.as_bytes(), is_unreserved)
}

/// Makes the idempotency key of a change.
fn new_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Appends a parameter to a query.
fn with_parameter(path: &mut String, name: &str, value: &str) {
    let separator = if path.contains('?') { '&' } else { '?' };
    write!(path, "{separator}{name}={}", encoded(value)).expect("a string grows");
}

/// Returns whether an error says that something does not exist: `not_found`, or status 404 from a server of another kind.
fn is_absent(error: &Error) -> bool {
    let status = std::error::Error::source(error).and_then(|source| source.downcast_ref::<RefusedStatus>());
    error.kind() == ErrorKind::NotFound || status.is_some_and(|RefusedStatus(status)| *status == StatusCode::NOT_FOUND)
}

/// Returns whether an answer was too large to be taken.
fn is_too_much(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    error.kind() == ErrorKind::TooLarge || cause.is_some_and(|cause| cause.kind() == ErrorKind::TooLarge)
}

/// Makes the error for a trace that does not exist.
fn absent(trace: &TraceAddress) -> Error {
    Error::new(ErrorKind::NotFound, format!("the trace `{trace}` does not exist")).without_effect()
}

/// Restores the source of an error that arrived as a problem, and the kind of one from a server of another kind.
fn as_received(error: Error) -> Error {
    match error.kind() {
        ErrorKind::PermissionDenied if error.message() == ForeignTrace.to_string() => error.with_source(ForeignTrace),
        kind if kind != ErrorKind::NotFound && is_absent(&error) => error.with_kind(ErrorKind::NotFound),
        _ => error,
    }
}

#[async_trait]
impl TraceStore for RemoteTraces {
    async fn create_trace(&self, trace: NewTrace) -> Result<Trace> {
        let location = match &trace.trace_id {
            Some(id) => return self.create_at(self.place(id).await?, trace).await,
            None => self.home.clone(),
        };
        let Some(location) = location else {
            return Err(Error::invalid_argument("the id of a trace to create elsewhere names its place: `@AGENT/ID`").without_effect());
        };
        let place = self.place_at(location, TraceId::random()).await?;
        self.create_at(place, trace).await
    }

    async fn get_trace(&self, trace: &TraceAddress) -> Result<Option<Trace>> {
        let place = self.place(trace).await?;
        let Some(found) = place.find::<Trace>(&Ask::get(place.path(""))).await? else { return Ok(None) };
        place.check_trace(&found, Some(&place.id))?;
        Ok(Some(place.trace_received(found)))
    }

    async fn update_trace(&self, trace: &TraceAddress, update: TraceUpdate) -> Result<Trace> {
        let place = self.place(trace).await?;
        let ask = Ask::new(Method::PATCH, place.path("")).with_json(&update)?.with_key(new_key());
        let updated: Trace = place.ask(&ask).await?;
        place.check_trace(&updated, Some(&place.id))?;
        Ok(place.trace_received(updated))
    }

    async fn list_traces(&self, query: &TracesQuery) -> Result<TracePage> {
        let Some(home) = self.home.clone() else {
            return Err(Error::unsupported("the traces of all places cannot be listed at once; list those of one place"));
        };
        let place = self.place_at(home, TraceId::random()).await?;
        let mut path = ROUTES.to_owned();
        let mut query = query.clone();
        query.limit = query.limit.min(TRACES_MAX);
        query.status.iter().for_each(|status| with_parameter(&mut path, "status", status.as_str()));
        query.mode.iter().for_each(|mode| with_parameter(&mut path, "mode", mode.as_str()));
        query.cursor.iter().for_each(|cursor| with_parameter(&mut path, "cursor", cursor));
        let (mut page, limit): (TracePage, _) = place.page(&path, query.limit).await?;
        query.limit = limit;
        place.check_traces(&page, &query)?;
        page.traces = page.traces.into_iter().map(|trace| place.trace_received(trace)).collect();
        Ok(page)
    }

    async fn delete_trace(&self, trace: &TraceAddress) -> Result<bool> {
        let place = self.place(trace).await?;
        match place.client.ask(&Ask::new(Method::DELETE, place.path("")).with_key(new_key())).await {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(as_received(error)),
        }
    }

    async fn get_goal_tree(&self, trace: &TraceAddress) -> Result<GoalTree> {
        let place = self.place(trace).await?;
        let tree = place.ask(&Ask::get(place.path("/goals"))).await?;
        Ok(place.goals_received(tree))
    }

    async fn update_goal_tree(&self, trace: &TraceAddress, tree: GoalTree) -> Result<()> {
        let place = self.place(trace).await?;
        let tree = place.goals_sent(tree)?;
        let ask = Ask::new(Method::PUT, place.path("/goals")).with_json(&tree)?.with_key(new_key());
        place.ask::<GoalTree>(&ask).await.map(drop)
    }

    async fn add_goal(&self, trace: &TraceAddress, goal: NewGoal) -> Result<Goal> {
        let place = self.place(trace).await?;
        let added: Goal = place.ask(&Ask::post(place.path("/goals")).with_json(&goal)?.with_key(new_key())).await?;
        if goal.id.is_some_and(|id| id != added.id) {
            return Err(place.invalid("another goal"));
        }
        Ok(place.goal_received(added))
    }

    async fn update_goal(&self, trace: &TraceAddress, goal: &str, mut update: GoalUpdate) -> Result<Goal> {
        let place = self.place(trace).await?;
        update.add_sub_trace = update.add_sub_trace.as_ref().map(|id| place.sent_or_refused(id)).transpose()?;
        let ask = Ask::new(Method::PATCH, place.part("goals", goal)?).with_json(&update)?.with_key(new_key());
        let updated: Goal = place.ask(&ask).await?;
        if updated.id != goal {
            return Err(place.invalid("another goal"));
        }
        Ok(place.goal_received(updated))
    }

    async fn add_messages(&self, trace: &TraceAddress, messages: Vec<NewMessage>, options: &AddOptions) -> Result<Added> {
        if messages.len() > PAGE_MAX {
            let message = format!("{} messages are over the limit of {PAGE_MAX}; append fewer at once", messages.len());
            return Err(Error::invalid_argument(message).without_effect());
        }
        options.check(messages.len())?;
        // Only the owner knows whether a key was used for other messages.
        if messages.is_empty() && options.idempotency_key.is_none() {
            return self.add_nothing(trace, options).await;
        }
        let place = self.place(trace).await?;
        let key = options.idempotency_key.clone().unwrap_or_else(new_key);
        let body = Append { messages: &messages, expected_head: options.expected_head, update: options.update.as_ref() };
        let mut added: Added = place.ask(&Ask::post(place.path("/messages")).with_json(&body)?.with_key(key)).await?;
        place.check_added(&added, messages.len())?;
        added.messages = added.messages.into_iter().map(|message| place.message_received(message)).collect();
        Ok(added)
    }

    async fn get_message(&self, trace: &TraceAddress, message: &MessageRef) -> Result<Option<Message>> {
        let place = self.place(trace).await?;
        let found: Option<Message> = place.find(&Ask::get(place.message_path(message)?)).await?;
        match found {
            Some(found) => {
                place.check_meant(&found, message)?;
                Ok(Some(place.message_received(found)))
            }
            // An absent trace is an error, and its answer is the same as that for an absent message.
            None => match self.get_trace(trace).await? {
                Some(_) => Ok(None),
                None => Err(absent(trace)),
            },
        }
    }

    async fn update_message(&self, trace: &TraceAddress, message: &MessageRef, update: MessageUpdate) -> Result<Message> {
        let place = self.place(trace).await?;
        let ask = Ask::new(Method::PATCH, place.message_path(message)?).with_json(&update)?.with_key(new_key());
        let updated: Message = place.ask(&ask).await?;
        place.check_meant(&updated, message)?;
        Ok(place.message_received(updated))
    }

    async fn get_messages(&self, trace: &TraceAddress, query: &MessagesQuery) -> Result<MessagesPage> {
        let place = self.place(trace).await?;
        let mut query = query.clone();
        query.limit = query.limit.min(PAGE_MAX);
        let mut path = place.path("/messages");
        if query.offset > 0 {
            with_parameter(&mut path, "offset", &query.offset.to_string());
        }
        query.since_sequence.iter().for_each(|since| with_parameter(&mut path, "since_sequence", &since.to_string()));
        query.goal_id.iter().for_each(|goal| with_parameter(&mut path, "goal_id", goal));
        let (mut page, limit): (MessagesPage, _) = place.page(&path, query.limit).await?;
        query.limit = limit;
        place.check_page(&page, &query)?;
        page.messages = page.messages.into_iter().map(|message| place.message_received(message)).collect();
        Ok(page)
    }

    async fn get_main_path(&self, trace: &TraceAddress, query: &PathQuery) -> Result<MessagesPage> {
        let place = self.place(trace).await?;
        let mut query = query.clone();
        let mut path = place.path("/messages?mode=main_path");
        query.head_sequence.iter().for_each(|head| with_parameter(&mut path, "head_sequence", &head.to_string()));
        let (mut page, limit): (MessagesPage, _) = place.page(&path, query.limit.unwrap_or(PAGE_MAX).min(PAGE_MAX)).await?;
        query.limit = Some(limit);
        place.check_path(&page, &query)?;
        page.messages = page.messages.into_iter().map(|message| place.message_received(message)).collect();
        Ok(page)
    }

    async fn append_event(&self, trace: &TraceAddress, kind: &str, data: OtherFields) -> Result<u64> {
        let place = self.place(trace).await?;
        let mut body = place.event_sent(data);
        body.insert("event".to_owned(), kind.into());
        let ask = Ask::post(place.path("/events")).with_json(&body)?.with_key(new_key());
        let added: EventAdded = place.ask(&ask).await?;
        Ok(added.event_id)
    }

    async fn get_events(&self, trace: &TraceAddress, since_event_id: u64, limit: usize) -> Result<EventsPage> {
        let (place, limit) = (self.place(trace).await?, limit.min(PAGE_MAX));
        let mut path = place.path("/events");
        with_parameter(&mut path, "since_event_id", &since_event_id.to_string());
        let (page, limit): (EventsPage, _) = place.page(&path, limit).await?;
        place.check_events(&page, since_event_id, limit)?;
        Ok(place.events_received(page))
    }

    async fn watch(&self, trace: &TraceAddress, since_event_id: u64) -> Result<EventStream> {
        let place = self.place(trace).await?;
        // A trace that cannot be read is refused here, not by the first event.
        if self.get_trace(trace).await?.is_none() {
            return Err(absent(trace));
        }
        let path = place.path(&format!("/watch?since_event_id={since_event_id}"));
        Ok(watch::follow(place, &path, since_event_id))
    }
}

impl RemoteTraces {
    /// Answers an append without messages, which servers refuse.
    async fn add_nothing(&self, trace: &TraceAddress, options: &AddOptions) -> Result<Added> {
        let found = self.get_trace(trace).await?.ok_or_else(|| absent(trace))?;
        let head_sequence = found.head_sequence;
        if options.expected_head.is_some_and(|expected| expected != head_sequence) {
            let message = format!("the head of the trace `{trace}` is {head_sequence}; read what was added, and try again");
            return Err(Error::new(ErrorKind::Conflict, message).without_effect());
        }
        Ok(Added { messages: Vec::new(), head_sequence, repeated: false })
    }

    async fn create_at(&self, place: Place, trace: NewTrace) -> Result<Trace> {
        let expected = trace.trace_id.as_ref().map(|id| id.id().clone());
        let ask = Ask::post(ROUTES).with_json(&place.new_trace_sent(trace))?.with_key(new_key());
        let created: Trace = place.ask(&ask).await?;
        place.check_trace(&created, expected.as_ref())?;
        Ok(place.trace_received(created))
    }
}
