//! A coding agent at work on a small repository: a model's recorded calls, replayed on a copy.
//!
//! ```text
//! cargo run --example coding_agent
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use treehold::tools::{Transcript, TranscriptEvent};
use treehold::{BackendExt, FilesystemBackend, FilesystemOptions, Result, Scope, Workspace};

#[tokio::main]
async fn main() -> Result<()> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let copy = std::env::temp_dir().join(format!("treehold-coding-agent-{}", std::process::id()));
    let copied = Command::new("cp").arg("-r").arg(examples.join("fixtures/greeter")).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()), "the repository can be copied");

    let repository = Arc::new(FilesystemBackend::open(&copy, FilesystemOptions::new())?);
    let workspace = Workspace::builder().backend("/workspace", repository.clone())?.build();
    let session = workspace.session(Scope::new().with_thread("greeter")).await?;

    let transcript = File::open(examples.join("transcripts/coding.jsonl")).expect("the transcript is part of the checkout");
    for event in Transcript::new(BufReader::new(transcript)) {
        if let TranscriptEvent::Call { name, call, .. } = event {
            let output = session.call(call?).await;
            println!("> {name}\n{}\n", output.text);
            assert!(!output.is_error, "{}", output.text);
        }
    }
    session.close().await?;

    assert!(repository.read_text("/greeter/cli.py").await?.contains("--shout"), "the patch took effect");
    std::fs::remove_dir_all(&copy).expect("the copy can be removed");
    Ok(())
}
