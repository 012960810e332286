//! Which tools are offered, and what the protocol is told of each.

use super::history;
use super::profile::McpTools;
use super::reference;
use crate::tools::{ToolInfo, ToolSet};
use rmcp::model::{MetaObject, Tool, ToolAnnotations};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The argument that names the thread of a call.
pub(super) const THREAD_ARGUMENT: &str = "thread_id";

/// How many characters of an answer Claude Code is asked to pass on whole: what `read_file` gives at most, and its remarks.
const RESULT_CHARS_MAX: u64 = 110_000;

/// A tool as it is offered.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    /// What the protocol is told.
    pub(super) tool: Tool,
    /// Who answers calls of it.
    pub(super) kind: OfferKind,
}

/// Who answers the calls of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfferKind {
    /// The library's tool of a set.
    Call(ToolSet),
    /// A tool of the reference server.
    Reference,
    /// A tool about the history of a thread.
    History,
}

/// Returns the tools in the order that clients are shown them, which never changes: a prompt that holds them stays cached.
pub(super) fn all(tools: McpTools, thread_argument: bool) -> Vec<Offer> {
    let of = |set: ToolSet, only_reads: bool| {
        let infos = set.tools().iter().filter(move |info| info.read_only || !only_reads);
        infos.map(move |info| Offer { tool: described(info), kind: OfferKind::Call(set) })
    };
    let mut offers: Vec<Offer> = match tools {
        McpTools::Default => of(ToolSet::Default, false).collect(),
        McpTools::ReadOnly => of(ToolSet::Default, true).collect(),
        McpTools::Memory => of(ToolSet::Memory, false).collect(),
        McpTools::ReadWrite | McpTools::Admin => of(ToolSet::Default, false).chain(of(ToolSet::Memory, false)).collect(),
        // It is told of just as that server tells it.
        McpTools::Reference => {
            return reference::tools().into_iter().map(|tool| Offer { tool, kind: OfferKind::Reference }).collect();
        }
    };
    if tools == McpTools::Admin {
        offers.extend(history::tools().into_iter().map(|tool| Offer { tool, kind: OfferKind::History }));
    }
    if thread_argument {
        for offer in &mut offers {
            offer.tool.input_schema = Arc::new(with_thread((*offer.tool.input_schema).clone()));
        }
    }
    offers
}

fn described(info: &ToolInfo) -> Tool {
    let schema = info.input_schema.as_object().cloned().unwrap_or_default();
    let annotations =
        ToolAnnotations::new().read_only(info.read_only).destructive(info.destructive).idempotent(info.idempotent).open_world(false);
    let tool = Tool::new(info.name, info.description, Arc::new(schema)).with_title(info.title).with_annotations(annotations);
    match info.name {
        "read_file" => {
            let mut meta = MetaObject::new();
            meta.insert("anthropic/maxResultSizeChars".to_owned(), RESULT_CHARS_MAX.into());
            tool.with_meta(meta)
        }
        _ => tool,
    }
}

/// Adds the argument `thread_id` to a schema. It is a plain text with a default: some clients drop a tool with a nullable argument.
fn with_thread(mut schema: Map<String, Value>) -> Map<String, Value> {
    let argument = json!({
        "type": "string",
        "description": "The conversation whose files stand at `/`; leave it out for the current one.",
        "default": "",
    });
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert(THREAD_ARGUMENT.to_owned(), argument);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::ToolFormat;

    fn names(tools: McpTools) -> Vec<String> {
        all(tools, true).iter().map(|offer| offer.tool.name.to_string()).collect()
    }

    #[test]
    fn what_each_choice_offers() {
        let files = ["ls", "read_file", "write_file", "edit_file", "apply_patch", "glob", "grep", "search", "delete", "move"];
        assert_eq!(names(McpTools::Default), files);
        assert_eq!(names(McpTools::ReadOnly), ["ls", "read_file", "glob", "grep", "search"]);
        assert_eq!(names(McpTools::Memory), ["memory"]);
        assert_eq!(names(McpTools::ReadWrite), [&files[..], &["memory"]].concat());
        assert_eq!(names(McpTools::Admin), [&files[..], &["memory", "history", "checkpoint", "restore"]].concat());
        assert_eq!(names(McpTools::Reference).len(), 14);
        for tools in McpTools::ALL {
            assert_eq!(tools.name().parse::<McpTools>().expect("its own name"), tools);
        }
    }

    #[test]
    fn every_tool_of_ours_takes_a_thread() {
        for offer in all(McpTools::Admin, true) {
            assert_eq!(offer.tool.input_schema["properties"][THREAD_ARGUMENT]["type"], "string", "{}", offer.tool.name);
        }
        assert!(all(McpTools::Admin, false).iter().all(|offer| offer.tool.input_schema["properties"].get(THREAD_ARGUMENT).is_none()));
    }

    #[test]
    fn what_is_told_is_what_the_library_exports() {
        let exported = crate::tools::schema::export(ToolFormat::Mcp);
        for (offer, exported) in all(McpTools::Default, false).iter().zip(exported.as_array().expect("a list")) {
            let mut told = serde_json::to_value(&offer.tool).expect("a tool is data");
            told.as_object_mut().expect("an object").remove("_meta");
            assert_eq!(&told, exported);
        }
    }
}
