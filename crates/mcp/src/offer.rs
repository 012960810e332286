//! The offered tools and their descriptions.

use super::history;
use super::profile::McpTools;
use super::reference;
use rmcp::model::{MetaObject, Tool, ToolAnnotations};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use treehold_agent::tools::{ToolInfo, ToolRegistry, ToolSet};

/// The argument that names the thread of a call.
pub(super) const THREAD_ARGUMENT: &str = "thread_id";

/// The result size, in characters, that Claude Code is asked to pass on untruncated: the maximum of `read_file` plus its remarks.
const RESULT_CHARS_MAX: u64 = 110_000;

/// An offered tool.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    /// The tool as described to clients.
    pub(super) tool: Tool,
    /// What handles its calls.
    pub(super) kind: OfferKind,
}

/// What handles the calls of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfferKind {
    /// A tool of a library tool set.
    Call(ToolSet),
    /// A tool of the reference server.
    Reference,
    /// A tool for the history of a thread.
    History,
}

/// Returns the tools in a fixed order, so that prompts that contain them stay cached.
pub(super) fn all(tools: McpTools, registry: &ToolRegistry, thread_argument: bool) -> Vec<Offer> {
    let of = |set: ToolSet, only_reads: bool| {
        let infos = registry.infos(set).filter(move |info| info.read_only || !only_reads);
        infos.map(move |info| Offer { tool: described(info), kind: OfferKind::Call(set) })
    };
    let mut offers: Vec<Offer> = match tools {
        McpTools::Default => of(ToolSet::Default, false).collect(),
        McpTools::ReadOnly => of(ToolSet::Default, true).collect(),
        McpTools::Memory => of(ToolSet::Memory, false).collect(),
        McpTools::ReadWrite | McpTools::Admin => of(ToolSet::Default, false).chain(of(ToolSet::Memory, false)).collect(),
        // Described exactly as the reference server describes them.
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
    let annotations = ToolAnnotations::new()
        .read_only(info.read_only)
        .destructive(info.destructive)
        .idempotent(info.idempotent)
        .open_world(info.open_world);
    let tool = Tool::new(info.name.clone(), info.description.clone(), Arc::new(schema))
        .with_title(info.title.clone())
        .with_annotations(annotations);
    match &*info.name {
        "read_file" => {
            let mut meta = MetaObject::new();
            meta.insert("anthropic/maxResultSizeChars".to_owned(), RESULT_CHARS_MAX.into());
            tool.with_meta(meta)
        }
        _ => tool,
    }
}

/// Adds the argument `thread_id` to a schema. It is a string with a default, because some clients drop tools with nullable arguments.
fn with_thread(mut schema: Map<String, Value>) -> Map<String, Value> {
    let argument = json!({
        "type": "string",
        "description": "The conversation whose files are at `/`; omit it for the current one.",
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
    use treehold_agent::tools::ToolFormat;

    fn names(tools: McpTools) -> Vec<String> {
        all(tools, &ToolRegistry::new(), true).iter().map(|offer| offer.tool.name.to_string()).collect()
    }

    #[test]
    fn each_choice_offers_its_tools() {
        let files = ["ls", "read_file", "write_file", "edit_file", "apply_patch", "glob", "grep", "search", "delete", "move"];
        assert_eq!(names(McpTools::Default), files);
        assert_eq!(names(McpTools::ReadOnly), ["ls", "read_file", "glob", "grep", "search"]);
        assert_eq!(names(McpTools::Memory), ["memory"]);
        assert_eq!(names(McpTools::ReadWrite), [&files[..], &["memory"]].concat());
        assert_eq!(names(McpTools::Admin), [&files[..], &["memory", "history", "checkpoint", "restore", "undo"]].concat());
        assert_eq!(names(McpTools::Reference).len(), 14);
        for tools in McpTools::ALL {
            assert_eq!(tools.name().parse::<McpTools>().expect("its own name"), tools);
        }
    }

    #[test]
    fn tools_take_a_thread_if_enabled() {
        for offer in all(McpTools::Admin, &ToolRegistry::new(), true) {
            assert_eq!(offer.tool.input_schema["properties"][THREAD_ARGUMENT]["type"], "string", "{}", offer.tool.name);
        }
        assert!(
            all(McpTools::Admin, &ToolRegistry::new(), false)
                .iter()
                .all(|offer| offer.tool.input_schema["properties"].get(THREAD_ARGUMENT).is_none())
        );
    }

    #[test]
    fn descriptions_equal_the_library_export() {
        let exported = treehold_agent::tools::schema::export(ToolFormat::Mcp);
        for (offer, exported) in all(McpTools::Default, &ToolRegistry::new(), false).iter().zip(exported.as_array().expect("a list")) {
            let mut told = serde_json::to_value(&offer.tool).expect("a tool is data");
            told.as_object_mut().expect("an object").remove("_meta");
            assert_eq!(&told, exported);
        }
    }
}
