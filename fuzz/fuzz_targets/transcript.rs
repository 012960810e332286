//! Random bytes as a transcript: reading terminates, reports existing lines, and does not depend on how the bytes
//! arrive.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::BufReader;
use treehold_agent::tools::{Transcript, TranscriptEvent};

fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    let whole: Vec<String> = Transcript::new(bytes).map(|event| shown(&event, lines)).collect();
    let in_drops: Vec<String> = Transcript::new(BufReader::with_capacity(1, bytes)).map(|event| shown(&event, lines)).collect();
    assert_eq!(whole, in_drops);
});

fn shown(event: &TranscriptEvent, lines: usize) -> String {
    let line = match event {
        TranscriptEvent::Call { line, .. } | TranscriptEvent::Thread { line, .. } | TranscriptEvent::Invalid { line, .. } => *line,
        _ => 1,
    };
    assert!((1..=lines).contains(&line), "line {line} of {lines}");
    format!("{event:?}")
}
