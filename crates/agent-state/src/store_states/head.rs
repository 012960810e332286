//! A session and the heads of its values, as one read finds them.

use super::StoreStates;
use crate::contract::StateVersion;
use crate::proofs::SessionProofs;
use crate::rows::{
    Floor, Form, HeadMeta, Owner, SessionRow, corrupt, floor_key, head_key, heads_prefix, read_head_key, session_floor_key, session_key,
    unsealed_row,
};
use crate::slot::StateSlot;
use crate::value::Body;
use bytes::Bytes;
use jiff::Timestamp;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_core::work;
use treehold_store::{Item, ScanEntry, ScanOptions};

/// A session and the head of a value, as one read found them.
pub(super) struct Seen {
    pub(super) session: Option<SeenSession>,
    pub(super) head: Option<SeenHead>,
    /// The version after which the value's versions continue if there is no head.
    floor: u64,
    /// The proofs that exist, for a save.
    pub(super) proofs: Vec<Item>,
}

pub(super) struct SeenSession {
    pub(super) row: SessionRow,
    pub(super) version: Version,
    pub(super) expires_at: Option<Timestamp>,
}

pub(super) struct SeenHead {
    pub(super) meta: HeadMeta,
    pub(super) version: Version,
    pub(super) value: Bytes,
}

impl SeenSession {
    pub(super) fn read(item: &Item) -> Result<Self> {
        Ok(Self { row: unsealed_row("session", &item.meta)?, version: item.version, expires_at: item.expires_at })
    }
}

impl SeenHead {
    pub(super) fn read(item: Item) -> Result<Self> {
        Ok(Self { meta: unsealed_row("state", &item.meta)?, version: item.version, value: item.value })
    }

    pub(super) fn is_of(&self, session: Option<&SeenSession>) -> bool {
        session.is_some_and(|session| session.row.data == self.meta.data)
    }

    pub(super) fn state_version(&self) -> Result<StateVersion> {
        StateVersion::new(self.meta.version).ok_or_else(|| corrupt("version of a state"))
    }
}

impl Seen {
    /// Returns the head if it belongs to the session.
    pub(super) fn live(&self) -> Option<&SeenHead> {
        self.head.as_ref().filter(|head| head.is_of(self.session.as_ref()))
    }

    pub(super) fn current(&self) -> Result<Option<StateVersion>> {
        self.live().map(SeenHead::state_version).transpose()
    }

    /// Returns the version of the next save. After a deletion the versions continue.
    pub(super) fn next_version(&self) -> Result<u64> {
        let last = self.head.as_ref().map_or(0, |head| head.meta.version).max(if self.live().is_some() { 0 } else { self.floor });
        last.checked_add(1).ok_or_else(|| corrupt("version of a state"))
    }
}

/// What a read of a head is for.
#[derive(Clone, Copy)]
pub(super) enum Look<'a> {
    ToSave(&'a SessionProofs),
    ToRead,
    ForVersion,
}

impl StoreStates {
    /// Reads a session, the head of a value and, for a save, where its versions continue and which of its proofs exist. Cost: one round trip.
    pub(super) async fn look(&self, owner: &Owner, slot: &StateSlot, form: Form, key: &str, look: Look<'_>) -> Result<Seen> {
        let session = slot.session();
        let mut keys = vec![session_key(session), head_key(session, form, key)];
        if let Look::ToSave(proofs) = look {
            keys.extend([session_floor_key(session), floor_key(session, form, key)]);
            keys.extend(proofs.all().map(|proof| proof.key().to_owned()));
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&owner.states()?, &keys, !matches!(look, Look::ForVersion)).await?;
        let mut found = found.into_iter();
        let session = found.next().flatten().map(|item| SeenSession::read(&item)).transpose()?;
        let head = found.next().flatten().map(SeenHead::read).transpose()?;
        let mut floor = 0;
        for item in found.by_ref().take(2).flatten() {
            floor = unsealed_row::<Floor>("last version of a state", &item.value)?.version.max(floor);
        }
        Ok(Seen { session, head, floor, proofs: found.flatten().collect() })
    }

    /// Reads the rows of a session's heads without their values, those of earlier sessions of the same name included.
    pub(super) async fn heads(&self, owner: &Owner, session: &str) -> Result<Vec<(Form, String, Item)>> {
        let (states, prefix) = (owner.states()?, heads_prefix(session));
        let mut options = ScanOptions::new().with_prefix(prefix.clone());
        let mut heads = Vec::new();
        loop {
            let page = self.store().scan(&states, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                let (form, key) = read_head_key(item.key.strip_prefix(&prefix).unwrap_or_default())?;
                heads.push((form, key, item));
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(heads),
            }
        }
    }

    pub(super) async fn session(&self, owner: &Owner, session: &str) -> Result<Option<SeenSession>> {
        let found = self.store().get(&owner.states()?, &session_key(session)).await?;
        found.map(|item| SeenSession::read(&item)).transpose()
    }
}

/// Decodes a head, on another thread if it is large.
pub(super) async fn decoded(head: &SeenHead) -> Result<Body> {
    let value = head.value.clone();
    work::run(value.len() as u64, move |_| Body::decode(&value)).await?
}
