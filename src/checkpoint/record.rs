//! The bytes of a saved state: a format number, then the nodes in path order.

use crate::backend::{StateNode, StateSnapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use crate::path::VfsPathBuf;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The number of the format, first in every record, so that a later one is told from it.
const FORMAT: u8 = 1;

#[derive(Serialize, Deserialize)]
struct StateRecord {
    version: u64,
    nodes: Vec<NodeRecord>,
}

#[derive(Serialize, Deserialize)]
struct NodeRecord {
    path: String,
    created_at: i64,
    file: Option<FilePart>,
}

#[derive(Serialize, Deserialize)]
struct FilePart {
    content: Bytes,
    version: u64,
    modified_at: i64,
}

/// What a list tells of a thread without reading its state.
#[derive(Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) entries: u64,
    pub(super) size_bytes: u64,
}

pub(super) fn summary(state: &StateSnapshot) -> Result<Vec<u8>> {
    encode(&Summary { entries: state.len() as u64, size_bytes: state.size_bytes() })
}

pub(super) fn read_summary(bytes: &[u8]) -> Result<Summary> {
    decode(bytes)
}

pub(super) fn write(state: &StateSnapshot) -> Result<Vec<u8>> {
    let nodes = state
        .iter()
        .map(|(path, node)| NodeRecord {
            path: path.as_str().to_owned(),
            created_at: node.created_at().as_microsecond(),
            file: node.content().map(|content| FilePart {
                content: content.clone(),
                version: node.version().map_or(0, Version::number),
                modified_at: node.modified_at().unwrap_or_default().as_microsecond(),
            }),
        })
        .collect();
    encode(&StateRecord { version: state.version().number(), nodes })
}

pub(super) fn read(bytes: &[u8]) -> Result<StateSnapshot> {
    let record: StateRecord = decode(bytes)?;
    let nodes = record
        .nodes
        .into_iter()
        .map(|node| {
            let created_at = time(node.created_at)?;
            let path = VfsPathBuf::parse(&node.path).map_err(|invalid| unreadable().with_source(invalid))?;
            let node = match node.file {
                Some(file) => StateNode::file(file.content, Version::new(file.version), created_at, time(file.modified_at)?),
                None => StateNode::directory(created_at),
            };
            Ok((path, node))
        })
        .collect::<Result<Vec<_>>>()?;
    StateSnapshot::from_nodes(nodes, Version::new(record.version))
}

fn time(microseconds: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(microseconds).map_err(|error| unreadable().with_source(error))
}

fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_extend(record, vec![FORMAT])
        .map_err(|error| Error::new(ErrorKind::Internal, "the state of a thread cannot be encoded").with_source(error))
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match bytes {
        [FORMAT, record @ ..] => postcard::from_bytes(record).map_err(|error| unreadable().with_source(error)),
        [newer, ..] if *newer > FORMAT => Err(Error::new(
            ErrorKind::Corrupt,
            format!("a thread was saved in format {newer} and this program knows {FORMAT}; use the newer program"),
        )),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Corrupt, "the saved state of a thread cannot be read back; it is left as it is, see `stratafs doctor`")
}
