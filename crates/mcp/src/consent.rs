//! Asks a person before a destructive call, if the client supports it.
//!
//! [`treehold_agent::tools::consent`] decides what is asked. This module asks it.
//!
//! Clients of revision 2026-07-28 receive the question as the result. They repeat the call with the person's reply and the
//! [`requestState`](https://modelcontextprotocol.io/specification/2026-07-28) of the question. Earlier clients receive an elicitation
//! request during the call. The state is sealed with a key of this server, is bound to one caller and one call with its arguments, contains
//! the question, and is accepted once within ten minutes. A forged consent, a consent to something else, and a consent to facts that have
//! changed since are all rejected. Servers that share a store share the key and the record of accepted consents, so the reply may reach a
//! different server.

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
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
#[cfg(feature = "http")]
use treehold_store::{Batch, Condition, Namespace, Store};
use uuid::Uuid;

pub(super) use treehold_agent::tools::consent::{Question, asked, concerns, of_protected};

/// The name of the question in the protocol.
const QUESTION: &str = "confirm";

/// How long to wait for a reply, and how long a reply is valid.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// The outcome of asking.
#[derive(Debug)]
pub(super) enum Consent {
    /// A person agreed to the call.
    Given,
    /// The client must ask the question and repeat the call with the reply.
    Ask(InputRequiredResult),
    /// The person declined or did not reply.
    Denied(Error),
}

/// Returns the form that asks a question.
fn form(question: &Question) -> Result<ElicitRequestParams> {
    let schema = json!({
        "type": "object",
        "properties": {QUESTION: {"type": "boolean", "title": question.verb, "description": "Yes, do it", "default": false}},
        "required": [QUESTION],
    });
    let schema = schema.as_object().cloned().unwrap_or_default();
    let requested_schema = ElicitationSchema::from_json_schema(schema)
        .map_err(|error| Error::new(ErrorKind::Internal, "a question cannot be made into a form").with_source(error))?;
    Ok(ElicitRequestParams::FormElicitationParams { meta: None, message: question.text(), requested_schema })
}

/// Returns the error of a call that a person did not agree to.
fn denied(question: &Question) -> Error {
    let error = Error::new(ErrorKind::PermissionDenied, format!("the user did not agree to {}; nothing was changed", question.doing));
    match &question.path {
        Some(path) => error.at(path),
        None => error,
    }
}

/// Returns whether the client can ask a person. A client that declares elicitation without details supports forms.
pub(super) fn can_ask(context: &RequestContext<RoleServer>) -> bool {
    let asks = context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
    asks.is_some_and(|asks| asks.form.is_some() || asks.url.is_none())
}

/// Returns the fingerprint of a call: the caller with its credential, the tool, and the arguments as parsed.
pub(super) fn of_call(scope: &Scope, credential: Option<&str>, tool: &str, arguments: &Value) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let arguments = arguments.to_string();
    let whose = [&scope.tenant, &scope.user, &scope.agent, &scope.thread].map(|field| field.as_deref());
    for part in whose.into_iter().chain([credential, Some(tool), Some(&*arguments)]) {
        // Length prefixes keep adjacent parts distinct.
        hasher.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
        hasher.update(part.unwrap_or_default().as_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// The open questions of a server and the consents that were accepted.
#[derive(Debug)]
pub struct Consents {
    codec: RequestStateCodec,
    answer_timeout: Duration,
    taken: Taken,
}

/// The questions whose consent was accepted. None is accepted twice.
#[derive(Debug)]
enum Taken {
    /// Accepted by this process, with the time.
    Here(Mutex<HashMap<Uuid, Instant>>),
    /// Accepted by any server that shares the store.
    #[cfg(feature = "http")]
    Stored(std::sync::Arc<dyn Store>, Namespace),
}

/// The row key of the sealing key that all servers of a store share.
#[cfg(feature = "http")]
const KEY: &str = "key";

impl Consents {
    /// Accepts replies only to questions of this process: its key is generated here and not stored.
    pub(super) fn new() -> Self {
        Self::with_key(&new_key(), ANSWER_TIMEOUT)
    }

    /// Accepts replies to questions of every server that shares a store, each once. The first server generates the key.
    ///
    /// Cost: one get, a conditional put for the first server, and a conditional put for each accepted consent.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for a malformed key, and errors of the store.
    #[cfg(feature = "http")]
    pub async fn shared(store: std::sync::Arc<dyn Store>, namespace: Namespace) -> Result<Self> {
        let key = loop {
            if let Some(row) = store.get(&namespace, KEY).await? {
                let corrupt = |_| {
                    Error::new(
                        ErrorKind::Corrupt,
                        "the key that signs questions cannot be read; remove its row, and the next \
                        question makes a new one",
                    )
                };
                break <[u8; 32]>::try_from(&*row.value).map_err(corrupt)?;
            }
            let key = new_key();
            let made = Batch::new().expect(&namespace, KEY, Condition::Absent).put(&namespace, KEY, key.to_vec());
            match store.commit(made).await {
                Ok(_) => break key,
                // Another server stored its key first.
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

    /// Asks a person, or reads the reply that comes with the call.
    ///
    /// # Errors
    /// A protocol error for a state that is not from this server or belongs to another call.
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
        let form = match form(question) {
            Ok(form) => form,
            Err(error) => return Ok(Consent::Denied(error)),
        };
        let answer = context.peer.create_elicitation_with_timeout(form, Some(ANSWER_TIMEOUT)).await;
        Ok(if is_yes(answer.ok()) { Consent::Given } else { Consent::Denied(denied(question)) })
    }

    async fn answered(
        &self,
        question: &Question,
        call: &[u8; 32],
        answer: Option<&Value>,
        state: Option<&str>,
    ) -> Result<Consent, ErrorData> {
        // A reply is meaningless without the state of its question.
        let (Some(answer), Some(state)) = (answer, state) else { return Ok(self.question(question, call)) };
        let asked = match self.codec.open_with(state, call) {
            Ok(asked) => Some(asked),
            Err(RequestStateError::Expired) => None,
            Err(_) => {
                let message = "`requestState` belongs to another call; repeat the call without it and without `inputResponses`";
                return Err(ErrorData::invalid_params(message, None));
            }
        };
        if !is_yes(serde_json::from_value(answer.clone()).ok()) {
            return Ok(Consent::Denied(denied(question)));
        }
        // The consent was to the facts at that time. If they have changed, ask again.
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
        let form = match form(question) {
            Ok(form) => form,
            Err(error) => return Consent::Denied(error),
        };
        let mut asked = Uuid::now_v7().as_bytes().to_vec();
        asked.extend_from_slice(fingerprint(question).as_bytes());
        let state = self.codec.seal_with(&asked, &SealOptions::new().associated_data(call).ttl(self.answer_timeout));
        let requests = InputRequests::from([(QUESTION.to_owned(), InputRequest::Elicitation(ElicitRequest::new(form)))]);
        Consent::Ask(InputRequiredResult::new(Some(requests), Some(state)))
    }

    /// Records that a consent is accepted. Returns false if it already was.
    async fn take(&self, id: Uuid) -> Result<bool> {
        match &self.taken {
            Taken::Here(taken) => {
                let mut taken = taken.lock();
                taken.retain(|_, at| at.elapsed() <= self.answer_timeout);
                Ok(taken.insert(id, Instant::now()).is_none())
            }
            #[cfg(feature = "http")]
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
    // Each id contributes 74 random bits, so four exceed the 256 bits of the key.
    let mut hasher = blake3::Hasher::new();
    for _ in 0..4 {
        hasher.update(Uuid::now_v7().as_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn fingerprint(question: &Question) -> blake3::Hash {
    blake3::hash(question.doing.as_bytes())
}

/// Returns whether the reply is an explicit yes.
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
    async fn consent_is_accepted_once_for_its_call_and_facts() {
        let (consents, own) = (consents(), call("t", "delete", "/d"));
        let yes: Value = serde_json::from_str(YES).expect("JSON");
        let given = state(&consents, &remove(3), &own);
        let answered =
            async |question: &Question, call: &[u8; 32], state: Option<&str>| consents.answered(question, call, Some(&yes), state).await;
        // Without the state, or if the facts differ from those asked about, the person is asked again.
        assert!(matches!(answered(&remove(3), &own, None).await, Ok(Consent::Ask(_))));
        assert!(matches!(answered(&remove(300), &own, Some(&given)).await, Ok(Consent::Ask(_))));
        // Another path, tool or thread makes it another call.
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
    async fn expired_consent_is_asked_for_again() {
        let consents = Consents::with_key(&[7; 32], Duration::ZERO);
        let (own, yes) = (call("t", "delete", "/d"), serde_json::from_str(YES).expect("JSON"));
        let given = state(&consents, &remove(3), &own);
        // The codec counts milliseconds, so wait until at least one has passed.
        let asked_at = jiff::Timestamp::now().as_millisecond();
        while jiff::Timestamp::now().as_millisecond() <= asked_at + 1 {
            std::hint::spin_loop();
        }
        assert!(matches!(consents.answered(&remove(3), &own, Some(&yes), Some(&given)).await, Ok(Consent::Ask(_))));
        let no = json!({"action": "decline"});
        assert!(matches!(consents.answered(&remove(3), &own, Some(&no), Some(&given)).await, Ok(Consent::Denied(_))));
    }
}
