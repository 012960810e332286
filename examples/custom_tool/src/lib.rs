//! `csv_query`: a tool that answers questions about a CSV file, so that a model need not read all of it.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use treehold::ops::ReadOptions;
use treehold::tools::{Tool, ToolContext, ToolInfo, ToolOutput};
use treehold::{Error, ErrorKind, Result, VfsPathBuf};

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The arguments of `csv_query`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CsvQuery {
    /// The CSV file; its first line names the columns.
    path: VfsPathBuf,
    /// The column to compare with `equals`; empty for every row.
    #[serde(default)]
    column: String,
    /// The text that the column must have.
    #[serde(default)]
    equals: String,
    /// The columns to return; empty for all of them.
    #[serde(default)]
    columns: Vec<String>,
    /// The most rows to return.
    #[serde(default = "limit")]
    #[schemars(range(min = 1))]
    limit: usize,
}

const fn limit() -> usize {
    100
}

/// The tool `csv_query`.
#[derive(Debug)]
pub struct CsvTool {
    info: ToolInfo,
}

impl CsvTool {
    /// Creates the tool.
    pub fn new() -> Self {
        let description = "Returns rows of a CSV file, optionally those whose column has a given text, and only some columns.";
        let info = ToolInfo::for_arguments::<CsvQuery>("csv_query", "Query a CSV file", description)
            .with_read_only()
            .with_open_world(false)
            .with_path_arguments(["path"]);
        Self { info }
    }
}

impl Default for CsvTool {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Tool for CsvTool {
    fn info(&self) -> &ToolInfo {
        &self.info
    }

    async fn run(&self, arguments: &Value, context: &ToolContext<'_>) -> Result<ToolOutput> {
        let query: CsvQuery = self.info.parse(arguments)?;
        let read = context.tree.read(&query.path, &ReadOptions::new().with_bytes_max(FILE_BYTES_MAX)).await?;
        let text = read.text_lossy();
        let mut rows = records(&text).into_iter();
        let names = rows.next().ok_or_else(|| wrong(&query.path, "is empty; its first line must name the columns"))?;
        let place = |name: &str| {
            let unknown = || Error::invalid_argument(format!("there is no column `{name}`; the columns are {}", names.join(", ")));
            names.iter().position(|column| column == name).ok_or_else(unknown)
        };
        let compared = if query.column.is_empty() { None } else { Some(place(&query.column)?) };
        let shown = match query.columns.as_slice() {
            [] => (0..names.len()).collect(),
            columns => columns.iter().map(|name| place(name)).collect::<Result<Vec<_>>>()?,
        };
        let cell = |row: &[String], place: usize| row.get(place).cloned().unwrap_or_default();
        let found: Vec<Vec<String>> = rows
            .filter(|row| compared.is_none_or(|place| cell(row, place) == query.equals))
            .map(|row| shown.iter().map(|place| cell(&row, *place)).collect())
            .collect();
        let head: Vec<&str> = shown.iter().map(|place| names[*place].as_str()).collect();
        let (total, cut) = (found.len(), found.len() > query.limit);
        let page = &found[..total.min(query.limit)];
        let mut answer = head.join(" | ");
        for row in page {
            answer.push('\n');
            answer.push_str(&row.join(" | "));
        }
        if cut {
            answer.push_str(&format!("\n[csv_query] {} of {total} rows; narrow the query or raise limit", page.len()));
        }
        Ok(ToolOutput::new(answer).with_data(json!({"columns": head, "rows": page, "rows_total": total})))
    }
}

fn wrong(path: &VfsPathBuf, what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("`{path}` {what}")).at(path)
}

/// Splits text into records of fields, as RFC 4180 quotes them.
fn records(text: &str) -> Vec<Vec<String>> {
    let (mut records, mut record, mut field, mut is_quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, is_quoted) {
            ('"', true) if letters.peek() == Some(&'"') => field.extend(letters.next()),
            ('"', _) => is_quoted = !is_quoted,
            (',', false) => record.push(std::mem::take(&mut field)),
            ('\r', false) if letters.peek() == Some(&'\n') => {}
            ('\n', false) => {
                record.push(std::mem::take(&mut field));
                records.push(std::mem::take(&mut record));
            }
            (letter, _) => field.push(letter),
        }
    }
    if !field.is_empty() || !record.is_empty() {
        record.push(field);
        records.push(record);
    }
    records
}
