//! Moves results that are too long for a prompt to a file of the thread, and returns their start with the path.

use futures::future::BoxFuture;
use serde_json::json;
use treehold_agent::session::{Target, Threads};
use treehold_agent::tools::ToolOutput;
use treehold_core::ops::StatOptions;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_tree::backend::{Backend, BackendExt};

/// The directory for such files. It is hidden, so that later searches do not find earlier results.
const DIRECTORY: &str = "/.large_tool_results";

/// The longest result returned in full, in characters: about 10,000 tokens, the size at which clients warn their users.
const CHARS_MAX: usize = 40_000;

/// How many characters of a longer result are returned.
const SHOWN_CHARS: usize = 4_000;

/// Moves a result that is too long to a file, and returns its start with the path. If the file cannot be written, the whole result is
/// returned: the tools bound it themselves.
pub(super) async fn offloaded(threads: &Threads, scope: &Scope, tool: &str, output: ToolOutput) -> ToolOutput {
    if output.is_error || output.text.len() <= CHARS_MAX || output.text.chars().nth(CHARS_MAX).is_none() {
        return output;
    }
    // The name is a hash of the content, so equal results share a file.
    let path = format!("{DIRECTORY}/{tool}-{}.txt", &blake3::hash(output.text.as_bytes()).to_hex()[..16]);
    let (file, content) = (path.clone(), output.text.clone());
    let work = move |session: treehold_agent::session::Session| -> BoxFuture<'static, treehold_core::error::Result<()>> {
        let (file, content) = (file.clone(), content.clone());
        Box::pin(async move {
            let tree = session.backend();
            if tree.stat(&VfsPath::parse(&file)?, &StatOptions::new()).await.is_ok_and(|entry| entry.size_bytes == content.len() as u64) {
                return Ok(());
            }
            tree.write(&file, content).await.map(drop)
        })
    };
    let target = Target::of_paths(VfsPathBuf::parse(&path).ok().map(|path| vec![path]));
    match threads.lasting(scope, &target, work).await {
        // The data would be as long as the text; programs that need it can read the file.
        Ok(()) => {
            let data = json!({"file": path, "size_bytes": output.text.len()});
            ToolOutput::new(started(&output.text, tool, &path)).with_data(data)
        }
        Err(error) => {
            tracing::debug!(%error, tool, "a long answer cannot be written to a file");
            output
        }
    }
}

/// Returns the first lines of a result, and where to find the rest.
fn started(text: &str, tool: &str, path: &str) -> String {
    let end = text.char_indices().nth(SHOWN_CHARS).map_or(text.len(), |(end, _)| end);
    let end = text[..end].rfind('\n').map_or(end, |line| line + 1);
    let shown = text[..end].trim_end_matches('\n');
    let (lines, shown_lines) = (text.lines().count(), shown.lines().count());
    format!(
        "{shown}\n\n[{tool}] these are {shown_lines} of {lines} lines; the whole answer ({} characters) is in `{path}`: read or grep that file, or \
         ask for less",
        text.chars().count()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_agent::workspace::Workspace;
    use treehold_core::ops::GrepOptions;

    #[tokio::test]
    async fn long_result_is_moved_to_a_file_and_shows_its_start() {
        let threads = Threads::new(Workspace::builder().build());
        let scope = Scope::new().with_thread("t");
        let long: String = (0..5_000).map(|line| format!("line {line} ü\n")).collect();
        let told = ToolOutput::new(long.clone()).with_data(json!({"lines": long}));
        let output = offloaded(&threads, &scope, "grep", told).await;
        assert!(output.text.starts_with("line 0 ü\nline 1 ü\n") && output.text.chars().count() < SHOWN_CHARS + 400);
        let path = output.text.split('`').nth(1).expect("its name");
        let tree = threads.session(&scope).await.expect("opened").backend();
        assert_eq!(tree.read_text(path).await.expect("written"), long);
        assert_eq!(output.data, Some(json!({"file": path, "size_bytes": long.len()})));
        let again = offloaded(&threads, &scope, "grep", ToolOutput::new(long.clone())).await;
        assert_eq!(again.text, output.text);
        let options = GrepOptions::new("line 4999");
        assert_eq!(tree.grep(VfsPath::ROOT, &options).await.expect("searched").files, [], "searches skip stored answers");
        let short = ToolOutput::new("x".repeat(CHARS_MAX));
        assert_eq!(offloaded(&threads, &scope, "grep", short.clone()).await, short);
    }
}
