//! Tests that the transcripts under `examples/` run to the end with the advertised results.

use super::{Transcript, TranscriptEvent};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold_tree::backend::{Backend, BackendExt, StateBackend};
use treehold_tree::composite::{CompositeBackend, CompositeBuilder};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// Threads with their own state, above shared memories.
struct Threads {
    memories: Arc<StateBackend>,
    open: BTreeMap<String, CompositeBackend>,
}

impl Threads {
    fn new() -> Self {
        Self { memories: Arc::new(StateBackend::new()), open: BTreeMap::new() }
    }

    fn thread(&mut self, id: &str) -> &CompositeBackend {
        let memories = self.memories.clone();
        self.open.entry(id.to_owned()).or_insert_with(|| {
            CompositeBackend::builder(Arc::new(StateBackend::new()))
                .route("/memories", memories)
                .and_then(CompositeBuilder::build)
                .expect("one mount")
        })
    }

    /// Plays a transcript and returns each call with its answer.
    async fn play(&mut self, transcript: &str) -> String {
        let file = std::fs::File::open(examples().join("transcripts").join(transcript)).expect("a shipped transcript");
        let mut shown = String::new();
        let mut thread = "default".to_owned();
        for event in Transcript::new(std::io::BufReader::new(file)) {
            match event {
                TranscriptEvent::Call { name, call, .. } => {
                    let call = call.unwrap_or_else(|error| panic!("{transcript}: {error}"));
                    let output = call.run(self.thread(&thread)).await;
                    assert!(!output.is_error, "{transcript}: {name}: {}", output.text);
                    shown.push_str(&format!("> {name}\n{}\n", output.text));
                }
                TranscriptEvent::Thread { scope, .. } => {
                    thread = scope.thread.expect("a thread");
                    shown.push_str(&format!("--- {thread}\n"));
                }
                TranscriptEvent::Invalid { line, error } => panic!("{transcript}:{line}: {error}"),
            }
        }
        shown
    }
}

/// Copies a directory of the host into a tree.
async fn load(backend: &dyn Backend, directory: &Path, to: &str) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let (path, to) = (entry.path(), format!("{to}/{}", entry.file_name().to_str().expect("a name")));
        if path.is_dir() {
            Box::pin(load(backend, &path, &to)).await;
        } else {
            backend.write(&to, std::fs::read(&path).expect("a file")).await.expect("a legal path");
        }
    }
}

#[tokio::test]
async fn memory_transcript_repeats_with_the_same_answers() {
    let mut threads = Threads::new();
    let first = threads.play("memory.jsonl").await;
    assert_eq!(threads.play("memory.jsonl").await.replace("Updated", "Created"), first, "the transcript can be repeated on the same data");
    insta::assert_snapshot!(first);
    let first_thread = threads.thread("brand-1");
    assert!(first_thread.exists("/notes.txt").await.expect("a state"));
    let second_thread = threads.thread("brand-2");
    assert!(!second_thread.exists("/notes.txt").await.expect("a state"), "a scratch file is the thread's own");
    assert!(second_thread.read_text("/memories/AGENTS.md").await.expect("the memory").contains("`#FD5108`"));
}

#[tokio::test]
async fn coding_transcript_edits_the_repository() {
    let mut threads = Threads::new();
    load(threads.thread("default"), &examples().join("fixtures/greeter"), "/workspace").await;
    insta::assert_snapshot!(threads.play("coding.jsonl").await);
    let tree = threads.thread("default");
    assert!(tree.read_text("/workspace/greeter/cli.py").await.expect("the file").contains("shout=options.shout"));
    assert!(tree.read_text("/workspace/docs/usage.md").await.expect("the file").contains("`es`, `fr`."));
}

#[tokio::test]
async fn review_transcript_is_parsed_from_a_recorded_document() {
    let mut threads = Threads::new();
    let first = threads.play("review.json").await;
    assert_eq!(first.matches("> ").count(), 3);
    assert_eq!(threads.play("review.json").await.replace("Updated", "Created"), first);
}
