//! The whole command line with one more tool, `csv_query`, and one more layer, `turns`: `custom_tool mcp` serves the tool to any agent.

use serde::Deserialize;
use std::process::ExitCode;
use treehold::config::Registry;
use treehold::layer::Limit;
use treehold_example_custom_tool::CsvTool;

/// The settings of the layer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Turns {
    /// How many operations run at once.
    at_once: usize,
}

fn main() -> ExitCode {
    let registry = Registry::builtin().with_layer("turns", |settings| Ok(Limit::new(settings.parse::<Turns>()?.at_once)));
    match registry.with_tool(CsvTool::new()) {
        Ok(registry) => treehold::cli::run(registry),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
