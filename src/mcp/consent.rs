//! Asking a person before something goes that cannot be had back, where the client can ask: in the way of its era.
//!
//! Asked about is what goes unseen or much at once: a directory with all it holds, the files that a patch removes or replaces, the file
//! that a move takes the place of, a thread that is set back, and a file that makes tools run code
//! ([`RUNS_CODE`](crate::layer::RUNS_CODE)), which is refused where nobody can be asked. A call with two such reasons is asked about once,
//! with both. What else a call plainly says of one file (its new content, its removal)
//! is not: who is asked about everything reads nothing any more.
//!
//! A client of today gets the question as the answer, and makes the call again with what the person said and with the
//! [`requestState`](https://modelcontextprotocol.io/specification/2026-07-28) that came with the question. That is sealed by a key of
//! this server, belongs to one caller and one call with its arguments, holds what was asked, and counts once and for ten minutes. So a
//! yes that nobody gave, a yes to something else, and a yes to what has changed since are none. Servers that share a store share the key and
//! what was taken, so the answer may come to another than asked.

use crate::backend::{Backend, BackendExt};
use crate::error::{Error, ErrorKind, Result};
use crate::layer::{Allowance, Refusal};
use crate::ops::{Change, Difference, Review, ReviewPurpose, Standing};
use crate::path::{VfsPath, VfsPathBuf};
use crate::scope::Scope;
#[cfg(feature = "serve")]
use crate::store::{Batch, Condition, Namespace, Store};
use crate::tools::ToolCall;
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, InputRequest,
    InputRequests, InputRequiredResult, ProtocolVersion, RequestStateCodec, RequestStateError, SealOptions,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// What the question is called in the protocol.
const QUESTION: &str = "confirm";

/// How many entries are counted; there may be more.
const COUNTED_MAX: usize = 1_000;

/// How many files a question names.
const NAMED_MAX: usize = 5;

/// How long an answer is waited for, and counts.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// What came of asking.
#[derive(Debug)]
pub(super) enum Consent {
    /// The call may be made: a person said so.
    Given,
    /// The question goes to the client, which makes the call again with the answer.
    Ask(InputRequiredResult),
    /// The person said no, or did not answer.
    Denied(Error),
}

/// What a person is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// What would be done, as it goes on after "do you agree to".
    doing: String,
    /// The word for it on the box to be ticked.
    verb: &'static str,
    path: Option<VfsPathBuf>,
}

impl Question {
    pub(super) fn new(verb: &'static str, doing: impl Into<String>, path: Option<&VfsPath>) -> Self {
        Self { doing: doing.into(), verb, path: path.map(ToOwned::to_owned) }
    }

    fn text(&self) -> String {
        let mut letters = self.doing.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        format!("{}{}?", first.map(String::from).unwrap_or_default(), letters.as_str())
    }

    fn form(&self) -> Result<ElicitRequestParams> {
        let schema = json!({
            "type": "object",
            "properties": {QUESTION: {"type": "boolean", "title": self.verb, "description": "Yes, do it", "default": false}},
            "required": [QUESTION],
        });
        let schema = schema.as_object().cloned().unwrap_or_default();
        let requested_schema = ElicitationSchema::from_json_schema(schema)
            .map_err(|error| Error::new(ErrorKind::Internal, "a question has no form").with_source(error))?;
        Ok(ElicitRequestParams::FormElicitationParams { meta: None, message: self.text(), requested_schema })
    }

    fn denied(&self) -> Error {
        let error = Error::new(ErrorKind::PermissionDenied, format!("the user did not agree to {}; nothing was changed", self.doing));
        match &self.path {
            Some(path) => error.at(path),
            None => error,
        }
    }
}

/// Tells whether a call is of a kind that is asked about, before anything is looked at.
pub(super) fn concerns(call: &ToolCall) -> bool {
    match call {
        ToolCall::Delete(delete) => delete.recursive,
        ToolCall::Memory(memory) => memory.removed().is_some(),
        ToolCall::Move(change) => change.overwrite,
        ToolCall::ApplyPatch(_) => true,
        _ => false,
    }
}

/// Returns what is to be asked before a call, as the tree is now; nothing when the call takes nothing away, or would fail.
///
/// # Errors
/// Those of looking at what would go.
pub(super) async fn question(tree: &dyn Backend, call: &ToolCall) -> Result<Option<Question>> {
    match call {
        ToolCall::Delete(delete) if delete.recursive => of_directory(tree, &delete.path).await,
        ToolCall::Memory(memory) => match memory.removed() {
            Some(path) => of_directory(tree, &path).await,
            None => Ok(None),
        },
        ToolCall::Move(change) if change.overwrite && change.from != change.to => {
            // A directory is never replaced, and what is not there replaces nothing: that is the call's own to tell.
            let is_file = tree.stat(&change.to).await.is_ok_and(|entry| !entry.is_directory());
            let replaces = is_file && tree.stat(&change.from).await.is_ok_and(|entry| !entry.is_directory());
            let doing = || format!("move `{}` to `{}` and replace the file that is there", change.from, change.to);
            Ok(replaces.then(|| Question::new("Replace", doing(), Some(&change.to))))
        }
        ToolCall::ApplyPatch(patch) => {
            let (removed, replaced) = patch.losses(tree).await;
            let parts = [("removes", removed), ("replaces", replaced)];
            let parts: Vec<String> =
                parts.iter().filter(|(_, paths)| !paths.is_empty()).map(|(verb, paths)| format!("{verb} {}", named(paths))).collect();
            let doing = format!("apply a patch that {}", parts.join(" and "));
            Ok((!parts.is_empty()).then(|| Question::new("Apply", doing, None)))
        }
        _ => Ok(None),
    }
}

/// Asks about files that make tools run code, which a call was refused to change. They are not empty.
pub(super) fn of_protected(refused: &[Refusal]) -> Question {
    Question::new("Change", changing(refused), refused.first().map(|refusal| &*refusal.path))
}

impl Question {
    /// Asks in the same question about files that make tools run code, if there are any.
    pub(super) fn and_protected(self, refused: &[Refusal]) -> Self {
        match refused {
            [] => self,
            _ => Self { doing: format!("{}, and {}", self.doing, changing(refused)), ..self },
        }
    }
}

fn changing(refused: &[Refusal]) -> String {
    let mut paths: Vec<VfsPathBuf> = refused.iter().map(|refusal| refusal.path.clone()).collect();
    paths.sort();
    paths.dedup();
    let reason = refused.first().map(|refusal| refusal.reason.as_str()).unwrap_or_default();
    format!("change {}, where {reason}", named(&paths))
}

/// Returns which files that make tools run code a call would change, of those calls that are asked about for another reason: so a person is
/// asked once about all of it. What cannot be found out is refused by the call.
pub(super) async fn protected(tree: &dyn Backend, call: &ToolCall) -> Vec<Refusal> {
    let removal = |path: &VfsPath| Difference::new(path, Some(Standing::Directory), None);
    let write = |path: &VfsPath| Difference::new(path, None, Some(Standing::File(0)));
    let differences = match call {
        ToolCall::Delete(delete) => vec![removal(&delete.path)],
        ToolCall::Memory(memory) => memory.removed().iter().map(|path| removal(path)).collect(),
        ToolCall::Move(change) => vec![removal(&change.from), write(&change.to)],
        ToolCall::ApplyPatch(patch) => {
            let changes = patch.changes(tree).await;
            let difference = |change: &Change| match change {
                Change::Delete { path, .. } => removal(path),
                _ => write(change.path()),
            };
            changes.iter().map(difference).collect()
        }
        _ => Vec::new(),
    };
    let allowance = Allowance::new(Vec::new());
    let review = async {
        for difference in differences {
            // Each is asked about where it is mounted.
            let at = difference.path.clone();
            let _ = tree.review(&Review::new(ReviewPurpose::Consent, at, vec![difference])).await;
        }
    };
    allowance.clone().during(review).await;
    allowance.refused()
}

/// Asks about a directory with all it holds. One that is empty or not there is not asked about, and neither is a file.
async fn of_directory(tree: &dyn Backend, path: &VfsPath) -> Result<Option<Question>> {
    let held = match tree.tree(path.as_str(), usize::MAX, COUNTED_MAX).await {
        Ok(held) => held,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(error),
    };
    if held.entries.is_empty() {
        return Ok(None);
    }
    let count = if held.truncated { format!("more than {COUNTED_MAX}") } else { held.entries.len().to_string() };
    let noun = if held.entries.len() == 1 { "entry" } else { "entries" };
    Ok(Some(Question::new("Remove", format!("remove `{path}` and the {count} {noun} in it"), Some(path))))
}

fn named(paths: &[VfsPathBuf]) -> String {
    let mut names: Vec<String> = paths.iter().take(NAMED_MAX).map(|path| format!("`{path}`")).collect();
    match paths.len() - names.len() {
        0 => {}
        1 => names.push("1 more file".to_owned()),
        more => names.push(format!("{more} more files")),
    }
    match names.pop() {
        Some(last) if !names.is_empty() => format!("{} and {last}", names.join(", ")),
        last => last.unwrap_or_default(),
    }
}

/// Tells whether the client has somebody to ask. A client that says no more than that it can ask, asks by forms.
pub(super) fn can_ask(context: &RequestContext<RoleServer>) -> bool {
    let asks = context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
    asks.is_some_and(|asks| asks.form.is_some() || asks.url.is_none())
}

/// Which call a question belongs to: the caller with its credential, the tool, and the arguments as they were understood.
pub(super) fn of_call(scope: &Scope, credential: Option<&str>, tool: &str, arguments: &Value) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let arguments = arguments.to_string();
    let whose = [&scope.tenant, &scope.user, &scope.agent, &scope.thread].map(|field| field.as_deref());
    for part in whose.into_iter().chain([credential, Some(tool), Some(&*arguments)]) {
        // With its length before it, no part can pass for two.
        hasher.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
        hasher.update(part.unwrap_or_default().as_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// The questions of a server, and the answers that were taken.
#[derive(Debug)]
pub(crate) struct Consents {
    codec: RequestStateCodec,
    answer_timeout: Duration,
    taken: Taken,
}

/// The questions whose yes was taken: none is taken twice.
#[derive(Debug)]
enum Taken {
    /// By this process, and when.
    Here(Mutex<HashMap<Uuid, Instant>>),
    /// By any server of a store.
    #[cfg(feature = "serve")]
    Stored(std::sync::Arc<dyn Store>, Namespace),
}

/// The key of the row that holds the key of all servers of a store.
#[cfg(feature = "serve")]
const KEY: &str = "key";

impl Consents {
    /// Takes answers to questions of this process alone, as its key is made here and kept nowhere.
    pub(super) fn new() -> Self {
        Self::with_key(&new_key(), ANSWER_TIMEOUT)
    }

    /// Takes answers to questions of every server of a store, each once. The key is made by the first of them.
    ///
    /// Cost: one get; for the first server a conditional put, and then one for each yes.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for what is no key, and those of the store.
    #[cfg(feature = "serve")]
    pub(crate) async fn shared(store: std::sync::Arc<dyn Store>, namespace: Namespace) -> Result<Self> {
        let key = loop {
            if let Some(row) = store.get(&namespace, KEY).await? {
                let corrupt =
                    |_| Error::new(ErrorKind::Corrupt, "the key of questions cannot be read; remove its row to have another made");
                break <[u8; 32]>::try_from(&*row.value).map_err(corrupt)?;
            }
            let key = new_key();
            let made = Batch::new().expect(&namespace, KEY, Condition::Absent).put(&namespace, KEY, key.to_vec());
            match store.commit(made).await {
                Ok(_) => break key,
                // Another server was first.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
        };
        Ok(Self { taken: Taken::Stored(store, namespace), ..Self::with_key(&key, ANSWER_TIMEOUT) })
    }

    fn with_key(key: &[u8; 32], answer_timeout: Duration) -> Self {
        let codec = RequestStateCodec::try_new(key.as_slice()).expect("a key of 32 bytes is long enough");
        Self { codec, answer_timeout, taken: Taken::Here(Mutex::default()) }
    }

    /// Asks, or reads the answer that a call brings.
    ///
    /// # Errors
    /// The protocol's, for a state that is none of this server or was given for another call.
    pub(super) async fn ask(
        &self,
        question: &Question,
        call: &[u8; 32],
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Consent, ErrorData> {
        if context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28) {
            let answer = request.input_responses.as_ref().and_then(|answers| answers.get(QUESTION));
            return self.answered(question, call, answer, request.request_state.as_deref()).await;
        }
        let form = match question.form() {
            Ok(form) => form,
            Err(error) => return Ok(Consent::Denied(error)),
        };
        let answer = context.peer.create_elicitation_with_timeout(form, Some(ANSWER_TIMEOUT)).await;
        Ok(if is_yes(answer.ok()) { Consent::Given } else { Consent::Denied(question.denied()) })
    }

    async fn answered(
        &self,
        question: &Question,
        call: &[u8; 32],
        answer: Option<&Value>,
        state: Option<&str>,
    ) -> Result<Consent, ErrorData> {
        // An answer without the state that came with the question is an answer to nothing.
        let (Some(answer), Some(state)) = (answer, state) else { return Ok(self.question(question, call)) };
        let asked = match self.codec.open_with(state, call) {
            Ok(asked) => Some(asked),
            Err(RequestStateError::Expired) => None,
            Err(_) => {
                let message = "`requestState` was not given for this call; make the call without it and without `inputResponses`";
                return Err(ErrorData::invalid_params(message, None));
            }
        };
        if !is_yes(serde_json::from_value(answer.clone()).ok()) {
            return Ok(Consent::Denied(question.denied()));
        }
        // Agreed was to what was so then; a person is asked about what is so now.
        let id = asked.as_ref().and_then(|asked| asked.split_first_chunk()).filter(|(_, text)| **text == *fingerprint(question).as_bytes());
        let taken = match id {
            Some((id, _)) => self.take(Uuid::from_bytes(*id)).await,
            None => Ok(false),
        };
        Ok(match taken {
            Ok(true) => Consent::Given,
            Ok(false) => self.question(question, call),
            Err(error) => Consent::Denied(error),
        })
    }

    fn question(&self, question: &Question, call: &[u8; 32]) -> Consent {
        let form = match question.form() {
            Ok(form) => form,
            Err(error) => return Consent::Denied(error),
        };
        let mut asked = Uuid::now_v7().as_bytes().to_vec();
        asked.extend_from_slice(fingerprint(question).as_bytes());
        let state = self.codec.seal_with(&asked, &SealOptions::new().associated_data(call).ttl(self.answer_timeout));
        let requests = InputRequests::from([(QUESTION.to_owned(), InputRequest::Elicitation(ElicitRequest::new(form)))]);
        Consent::Ask(InputRequiredResult::new(Some(requests), Some(state)))
    }

    /// Takes the yes to a question, unless it was taken before.
    async fn take(&self, id: Uuid) -> Result<bool> {
        match &self.taken {
            Taken::Here(taken) => {
                let mut taken = taken.lock();
                taken.retain(|_, at| at.elapsed() <= self.answer_timeout);
                Ok(taken.insert(id, Instant::now()).is_none())
            }
            #[cfg(feature = "serve")]
            Taken::Stored(store, namespace) => {
                let id = id.to_string();
                let mark = Batch::new().expect(namespace, &*id, Condition::Absent).put_for(namespace, &*id, "", 2 * self.answer_timeout);
                match store.commit(mark).await {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
                    Err(error) => Err(error.without_effect()),
                }
            }
        }
    }
}

fn new_key() -> [u8; 32] {
    // Each id has 74 bits of the system's randomness, so the four have more than the key.
    let mut hasher = blake3::Hasher::new();
    for _ in 0..4 {
        hasher.update(Uuid::now_v7().as_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn fingerprint(question: &Question) -> blake3::Hash {
    blake3::hash(question.doing.as_bytes())
}

/// Reads the answer: only a clear yes is one.
fn is_yes(answer: Option<ElicitResult>) -> bool {
    answer.is_some_and(|answer| {
        answer.action == ElicitationAction::Accept && answer.content.is_some_and(|content| content[QUESTION] == Value::Bool(true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: &str = r#"{"action": "accept", "content": {"confirm": true}}"#;

    fn consents() -> Consents {
        Consents::with_key(&[7; 32], ANSWER_TIMEOUT)
    }

    fn remove(count: usize) -> Question {
        Question::new("Remove", format!("remove `/d` and the {count} entries in it"), None)
    }

    fn call(thread: &str, tool: &str, path: &str) -> [u8; 32] {
        of_call(&Scope::new().with_thread(thread), None, tool, &json!({"path": path}))
    }

    fn state(consents: &Consents, question: &Question, call: &[u8; 32]) -> String {
        match consents.question(question, call) {
            Consent::Ask(asked) => asked.request_state.expect("a state"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_yes_counts_once_for_the_call_and_the_facts_that_were_asked_about() {
        let (consents, own) = (consents(), call("t", "delete", "/d"));
        let yes: Value = serde_json::from_str(YES).expect("JSON");
        let given = state(&consents, &remove(3), &own);
        let answered =
            async |question: &Question, call: &[u8; 32], state: Option<&str>| consents.answered(question, call, Some(&yes), state).await;
        // Without the state, and about more than was asked, the person is asked again.
        assert!(matches!(answered(&remove(3), &own, None).await, Ok(Consent::Ask(_))));
        assert!(matches!(answered(&remove(300), &own, Some(&given)).await, Ok(Consent::Ask(_))));
        // Another path, tool or thread is another call.
        for other in [call("t", "delete", "/e"), call("t", "move", "/d"), call("u", "delete", "/d")] {
            assert!(answered(&remove(3), &other, Some(&given)).await.is_err());
        }
        let mut forged = given.clone();
        forged.pop();
        for forged in [forged.as_str(), "", "rs1.x.y", &state(&Consents::new(), &remove(3), &own)] {
            assert!(answered(&remove(3), &own, Some(forged)).await.is_err(), "{forged}");
        }
        assert!(matches!(answered(&remove(3), &own, Some(&given)).await, Ok(Consent::Given)));
        assert!(matches!(answered(&remove(3), &own, Some(&given)).await, Ok(Consent::Ask(_))), "it was taken");
    }

    #[tokio::test]
    async fn a_yes_that_comes_too_late_is_asked_for_again() {
        let consents = Consents::with_key(&[7; 32], Duration::ZERO);
        let (own, yes) = (call("t", "delete", "/d"), serde_json::from_str(YES).expect("JSON"));
        let given = state(&consents, &remove(3), &own);
        // The codec counts milliseconds: until the next one it is not late.
        let asked_at = jiff::Timestamp::now().as_millisecond();
        while jiff::Timestamp::now().as_millisecond() <= asked_at + 1 {
            std::hint::spin_loop();
        }
        assert!(matches!(consents.answered(&remove(3), &own, Some(&yes), Some(&given)).await, Ok(Consent::Ask(_))));
        let no = json!({"action": "decline"});
        assert!(matches!(consents.answered(&remove(3), &own, Some(&no), Some(&given)).await, Ok(Consent::Denied(_))));
    }

    #[test]
    fn files_are_named_up_to_a_few() {
        let paths: Vec<VfsPathBuf> = (0..7).map(|number| VfsPathBuf::parse(format!("/{number}")).expect("legal")).collect();
        assert_eq!(named(&paths[..1]), "`/0`");
        assert_eq!(named(&paths[..2]), "`/0` and `/1`");
        assert_eq!(named(&paths[..6]), "`/0`, `/1`, `/2`, `/3`, `/4` and 1 more file");
        assert_eq!(named(&paths), "`/0`, `/1`, `/2`, `/3`, `/4` and 2 more files");
    }
}
