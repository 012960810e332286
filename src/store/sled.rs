//! stub
#![allow(missing_docs)]
#[derive(Debug, Clone, Default)]
pub struct SledStore {}
