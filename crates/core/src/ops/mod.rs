//! Every operation as data: options in, results out, with [`Change`] for all mutations.
//!
//! Each read method of `Backend` has an options struct here. Mutations are a list of [`Change`] for `apply`. Every operation is bounded:
//! options contain limits, and a truncated result says in its [`Truncation`] why it ended and how to continue.

mod call;
mod capabilities;
mod change;
mod entry;
mod extensions;
mod glob;
mod grep;
mod history;
mod ls;
mod read;
mod review;
mod scope;
mod search;
mod stat;

pub use crate::kind::OpKind;
pub use crate::version::{InvalidVersion, Version};
pub use call::Op;
pub use capabilities::{Capabilities, Durability};
pub use change::{ApplyOptions, CHANGES_MAX, Change, Changed, Edit, WriteMode};
pub use entry::{Entry, EntryKind, Failure, OnFailure, Truncation, TruncationReason};
pub use extensions::Extensions;
pub use glob::{GlobOptions, GlobResult};
pub use grep::{CaseMode, Encoding, GrepCursor, GrepFile, GrepLine, GrepOptions, GrepOutput, GrepResult};
pub use history::{Author, Forgotten, Moment, Revision};
pub use ls::{Listing, LsOptions};
pub use read::{FileRead, ReadOptions, ReadRange, Window};
pub use review::{Difference, Review, ReviewPurpose, Sight, Standing};
pub use scope::{PathGuard, SearchScope};
pub use search::{Corpus, NearWord, SearchHit, SearchMerge, SearchOptions, SearchResult, Snippet, Spelling};
pub use stat::StatOptions;
