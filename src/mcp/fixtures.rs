//! Fixtures that the protocol's public conformance suites require of a server: tools, resources and prompts with fixed results. They are
//! offered only by a hidden flag of builds with the feature `conformance`.

#![expect(deprecated, reason = "the suites ask for sampling and logging, which the protocol will drop")]

mod rounds;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ContentBlock, CreateMessageRequestParams, ElicitRequestParams,
    GetPromptRequestParams, GetPromptResponse, JsonObject, LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam,
    Prompt, ReadResourceResult, Resource, ResourceTemplate, ServerCapabilities, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

/// An image of one red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg==";

/// An audio clip without samples.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

/// The prefix of the URIs of these resources.
const SCHEME: &str = "test://";

/// The tools without arguments.
const PLAIN: [&str; 19] = [
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_error_handling",
    "test_tool_with_progress",
    "test_tool_with_logging",
    "test_logging_tool",
    "test_missing_capability",
    "test_streaming_elicitation",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_request_state",
    "test_input_required_result_multi_round",
    "test_input_required_result_capabilities",
];

/// More tools without arguments, and those with one string argument.
const MORE: [(&str, Option<&str>); 4] = [
    ("test_input_required_result_multiple_inputs", None),
    ("test_input_required_result_tampered_state", None),
    ("test_sampling", Some("prompt")),
    ("test_elicitation", Some("message")),
];

/// The fixtures of one server.
#[derive(Debug)]
pub(super) struct Fixtures {
    rounds: rounds::Rounds,
}

impl Fixtures {
    pub(super) fn new() -> Self {
        Self { rounds: rounds::Rounds::new() }
    }

    /// Declares the additional capabilities that the suites expect.
    pub(super) fn declare(capabilities: &mut ServerCapabilities) {
        capabilities.completions = Some(JsonObject::new());
        capabilities.logging = Some(JsonObject::new());
    }

    /// Returns the tools.
    pub(super) fn tools() -> Vec<Tool> {
        let all = PLAIN.iter().map(|name| (*name, None)).chain(MORE);
        all.map(|(name, argument)| {
            let schema = match argument {
                Some(argument) => json!({"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}),
                None => json!({"type": "object", "properties": {}}),
            };
            Tool::new(name, "A fixture of the conformance suites.", Arc::new(schema.as_object().cloned().unwrap_or_default()))
        })
        .collect()
    }

    /// Returns whether a tool is one of these.
    pub(super) fn has_tool(name: &str) -> bool {
        PLAIN.contains(&name) || MORE.iter().any(|(more, _)| *more == name)
    }

    /// Handles a call of one of the tools.
    pub(super) async fn call(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = &*request.name;
        if let Some(answer) = self.rounds.tool(request, context) {
            return answer;
        }
        let content = match name {
            "test_image_content" => json!([image()]),
            "test_audio_content" => json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]),
            "test_embedded_resource" => {
                json!([embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")])
            }
            "test_multiple_content_types" => {
                let resource = embedded("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#);
                json!([text("Multiple content types test:"), image(), resource])
            }
            "test_error_handling" => {
                return answer(json!({"isError": true, "content": [text("This tool intentionally returns an error for testing")]}));
            }
            "test_tool_with_progress" => {
                self.progress(context).await;
                json!([text("done")])
            }
            "test_tool_with_logging" => {
                for message in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                    log(context, message).await;
                }
                json!([text("done")])
            }
            "test_logging_tool" => {
                if context.meta.log_level().is_some() {
                    log(context, "asked for").await;
                }
                json!([text("done")])
            }
            "test_missing_capability" => {
                let required = ClientCapabilities::builder().enable_sampling().build();
                if context.client_capabilities().is_none_or(|capabilities| capabilities.sampling.is_none()) {
                    return Err(ErrorData::missing_required_client_capability(required));
                }
                json!([text("the client can sample")])
            }
            "test_sampling" => json!([text(self.sampled(request, context).await?)]),
            "test_elicitation" => {
                let properties = json!({"username": {"type": "string", "description": "User's response"}, "email": {"type": "string", "description": "User's email address"}});
                let asked = argument(request, "message");
                json!([text(format!("User response: {}", elicited(context, &asked, properties, &["username", "email"]).await?))])
            }
            "test_elicitation_sep1034_defaults" => {
                json!([text(format!("Elicitation completed: {}", elicited(context, "Defaults", defaults(), &[]).await?))])
            }
            "test_elicitation_sep1330_enums" => {
                json!([text(format!("Elicitation completed: {}", elicited(context, "Choices", choices(), &[]).await?))])
            }
            _ => json!([text("This is a simple text response for testing.")]),
        };
        answer(json!({"content": content}))
    }

    async fn progress(&self, context: &RequestContext<RoleServer>) {
        let Some(token) = context.meta.get_progress_token() else { return };
        for done in [0.0, 50.0, 100.0] {
            let told = ProgressNotificationParam::new(token.clone(), done).with_total(100.0);
            // Ignore clients that stopped listening.
            let _ = context.peer.notify_progress(told).await;
        }
    }

    async fn sampled(&self, request: &CallToolRequestParams, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
        let message = json!({"role": "user", "content": text(argument(request, "prompt"))});
        let asked: CreateMessageRequestParams = made(json!({"messages": [message], "maxTokens": 100}))?;
        let sampled = context.peer.create_message(asked).await.map_err(refused)?;
        Ok(format!("LLM response: {}", json!(sampled)))
    }

    /// Returns the resources.
    pub(super) fn resources() -> [Resource; 3] {
        [
            Resource::new("test://static-text", "static-text").with_mime_type("text/plain"),
            Resource::new("test://static-binary", "static-binary").with_mime_type("image/png"),
            Resource::new("test://watched-resource", "watched-resource").with_mime_type("text/plain"),
        ]
    }

    /// Returns the template of resources.
    pub(super) fn template() -> ResourceTemplate {
        ResourceTemplate::new("test://template/{id}/data", "template").with_mime_type("application/json")
    }

    /// Returns whether a URI is one of these resources.
    pub(super) fn owns(uri: &str) -> bool {
        Self::resources().iter().any(|resource| resource.uri == uri)
    }

    /// Reads one of the resources.
    pub(super) fn read(uri: &str) -> Option<Result<ReadResourceResult, ErrorData>> {
        let name = uri.strip_prefix(SCHEME)?;
        let content = match name {
            "static-text" => json!({"mimeType": "text/plain", "text": "This is the content of the static text resource."}),
            "watched-resource" => json!({"mimeType": "text/plain", "text": "This resource may be watched."}),
            "static-binary" => json!({"mimeType": "image/png", "blob": PNG}),
            name => {
                let id = name.strip_prefix("template/")?.strip_suffix("/data")?;
                let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                json!({"mimeType": "application/json", "text": data.to_string()})
            }
        };
        let mut content = content;
        content["uri"] = uri.into();
        Some(made(json!({"resultType": "complete", "contents": [content]})))
    }

    /// Returns the prompts.
    pub(super) fn prompts() -> Result<Vec<Prompt>, ErrorData> {
        let argument = |name: &str| json!({"name": name, "description": "An argument", "required": true});
        made(json!([
            {"name": "test_simple_prompt", "description": "A prompt"},
            {"name": "test_prompt_with_arguments", "description": "A prompt with arguments", "arguments": [argument("arg1"), argument("arg2")]},
            {"name": "test_prompt_with_embedded_resource", "description": "A prompt with a resource", "arguments": [argument("resourceUri")]},
            {"name": "test_prompt_with_image", "description": "A prompt with an image"},
            {"name": "test_input_required_result_prompt", "description": "A prompt that asks"},
        ]))
    }

    /// Returns one of the prompts.
    pub(super) fn prompt(&self, request: &GetPromptRequestParams) -> Result<GetPromptResponse, ErrorData> {
        let given = |name: &str| request.arguments.as_ref().and_then(|arguments| arguments.get(name)?.as_str()).unwrap_or_default();
        let contents = match request.name.as_str() {
            "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
            "test_prompt_with_arguments" => {
                vec![text(format!("Prompt with arguments: arg1='{}', arg2='{}'", given("arg1"), given("arg2")))]
            }
            "test_prompt_with_embedded_resource" => {
                let resource = embedded(given("resourceUri"), "text/plain", "Embedded resource content for testing.");
                vec![resource, text("Please process the embedded resource above.")]
            }
            "test_prompt_with_image" => vec![image(), text("Please analyze the image above.")],
            "test_input_required_result_prompt" => return self.rounds.prompt(request),
            name => return Err(ErrorData::invalid_params(format!("there is no prompt `{name}`"), None)),
        };
        let messages: Vec<Value> = contents.into_iter().map(|content| json!({"role": "user", "content": content})).collect();
        made::<rmcp::model::GetPromptResult>(json!({"resultType": "complete", "messages": messages})).map(Into::into)
    }
}

fn text(text: impl Into<String>) -> Value {
    json!({"type": "text", "text": text.into()})
}

fn image() -> Value {
    json!({"type": "image", "data": PNG, "mimeType": "image/png"})
}

fn embedded(uri: &str, mime_type: &str, text: &str) -> Value {
    json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": text}})
}

fn argument(request: &CallToolRequestParams, name: &str) -> String {
    let given = request.arguments.as_ref().and_then(|arguments| arguments.get(name)?.as_str());
    given.unwrap_or_default().to_owned()
}

fn defaults() -> Value {
    json!({
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": true},
    })
}

fn choices() -> Value {
    let options = ["option1", "option2", "option3"];
    let titled = json!([
        {"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}, {"const": "value3", "title": "Third Option"}
    ]);
    json!({
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    })
}

/// Asks for properties and returns the outcome as text.
async fn elicited(context: &RequestContext<RoleServer>, message: &str, properties: Value, required: &[&str]) -> Result<String, ErrorData> {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    let asked: ElicitRequestParams = made(json!({"mode": "form", "message": message, "requestedSchema": schema}))?;
    let answer = context.peer.create_elicitation(asked).await.map_err(refused)?;
    let action = json!(answer.action);
    let content = answer.content.unwrap_or_default();
    Ok(format!("action={}, content={content}", action.as_str().unwrap_or_default()))
}

async fn log(context: &RequestContext<RoleServer>, message: &str) {
    let told = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(message));
    // Ignore clients that stopped listening.
    let _ = context.peer.notify_logging_message(told).await;
}

fn refused(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(format!("the client did not answer: {error}"), None)
}

fn answer(result: Value) -> Result<CallToolResponse, ErrorData> {
    let mut answer = rmcp::model::CallToolResult::success(made::<Vec<ContentBlock>>(result["content"].clone())?);
    answer.is_error = result["isError"].as_bool();
    Ok(answer.into())
}

fn made<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(|error| ErrorData::internal_error(format!("a fixture is wrong: {error}"), None))
}
