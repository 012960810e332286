//! Commits that need entries in other partitions: the user in the directory of the tenant, and visits of sweeps.

use crate::rows::{Owner, SESSIONS, new_id};
use crate::schedule::{VISITS, schedule};
use crate::states::AgentStates;
use bytes::Bytes;
use std::collections::BTreeMap;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_store::intent::Intent;
use treehold_store::proof::Proof;
use treehold_store::{Batch, Item, ScanOptions};

/// A proof that a commit needs.
pub(crate) struct NeededProof {
    proof: Proof,
    /// Its value, if it exists and still counts.
    found: Option<Bytes>,
}

/// The proofs that a save needs if it creates the session, or gives it an expiry.
pub(crate) struct SessionProofs {
    pub(crate) directory: Proof,
    /// The visit that looks whether the session has expired.
    pub(crate) expiry: Option<(i64, Proof)>,
}

impl SessionProofs {
    /// Names the proofs of a session that expires at a time, if it does.
    pub(crate) fn new(owner: &Owner, now: i64, expires_at: Option<i64>) -> Result<Self> {
        let visit = expires_at.map(|at| owner.visit_for(now, at));
        let expiry = visit.map(|visit| Ok::<_, Error>((visit, owner.visit_proof(visit)?))).transpose()?;
        Ok(Self { directory: owner.directory_proof()?, expiry })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Proof> {
        [&self.directory].into_iter().chain(self.expiry.as_ref().map(|(_, proof)| proof))
    }
}

impl AgentStates {
    /// Pairs a proof with the row that was read for it.
    pub(crate) fn needed(&self, proof: Proof, found: Option<&Item>) -> NeededProof {
        NeededProof { proof, found: found.and_then(|found| Proof::valid_value(found, self.clock.now())) }
    }

    /// Reads the proof of a visit. Cost: one round trip.
    pub(crate) async fn needed_visit(&self, owner: &Owner, visit: i64) -> Result<NeededProof> {
        let proof = owner.visit_proof(visit)?;
        let found = self.store.get(&owner.states()?, proof.key()).await?;
        Ok(self.needed(proof, found.as_ref()))
    }

    /// Commits a batch that needs proofs.
    ///
    /// Cost: one round trip. Two more, each of several calls at once, if proofs do not exist; and, if the commit then has no effect, one to
    /// withdraw each and that of [`AgentStates::forget_user`].
    ///
    /// # Errors
    /// As [`Store::commit`](treehold_store::Store::commit).
    pub(crate) async fn commit_with(&self, owner: &Owner, mut batch: Batch, proofs: &[NeededProof]) -> Result<Vec<Version>> {
        let proofs: BTreeMap<&str, &NeededProof> = proofs.iter().map(|needed| (needed.proof.key(), needed)).collect();
        let mut missing = Vec::new();
        for needed in proofs.into_values() {
            match &needed.found {
                Some(found) => batch = needed.proof.expect(batch, found),
                None => missing.push(&needed.proof),
            }
        }
        if missing.is_empty() {
            return self.store.commit(batch).await;
        }
        let (id, now) = (new_id(), self.clock.now());
        let announced = futures::future::join_all(missing.iter().map(|proof| proof.announce(&*self.store, &id, now)));
        let (announced, scheduled) = futures::join!(announced, self.schedule_again(owner, &missing));
        if let Err(error) = scheduled {
            // The commit does not depend on it.
            tracing::warn!(%error, "visits that may be missing from the schedule of sweeps are looked for again in a day");
        }
        let (mut intents, mut failed) = (Vec::new(), None);
        for (proof, announced) in missing.iter().zip(announced) {
            match announced {
                Ok(intent) => {
                    batch = proof.establish(&intent, batch, now);
                    intents.push(intent);
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            self.withdraw(owner, intents).await;
            return Err(error.without_effect());
        }
        let committed = self.store.commit(batch).await;
        if committed.as_ref().is_err_and(|error| !error.may_have_effect()) {
            self.withdraw(owner, intents).await;
        }
        committed
    }

    /// Schedules the visits again that the owner has proofs of, if the directory's proof is put. So nothing is forgotten of an owner whose file
    /// was moved from another store, where the schedule stays. At most once a day for each owner.
    ///
    /// Cost: one scan; one read if there are visits, and one commit if some are not scheduled.
    async fn schedule_again(&self, owner: &Owner, missing: &[&Proof]) -> Result<()> {
        let directory = owner.directory_proof()?;
        if !missing.contains(&&directory) {
            return Ok(());
        }
        let page = self.store.scan(&owner.states()?, ScanOptions::new().with_prefix(VISITS)).await?;
        let times = page.entries.iter().filter_map(|entry| entry.key().strip_prefix(VISITS)?.parse().ok());
        let visits: Vec<Proof> = times.map(|visit| owner.visit_proof(visit)).collect::<Result<_>>()?;
        if visits.is_empty() {
            return Ok(());
        }
        let keys: Vec<&str> = visits.iter().map(Proof::entry).collect();
        let found = self.store.get_many(&schedule(), &keys, false).await?;
        let lost = visits.iter().zip(found).filter(|(_, found)| found.is_none());
        let batch = lost.fold(Batch::new(), |batch, (visit, _)| visit.put_entry(batch));
        if batch.is_empty() { Ok(()) } else { self.store.commit(batch).await.map(drop) }
    }

    /// Removes the intents of a commit without effect, and the user from the directory if there is no session. Visits stay until their time.
    /// If that fails, the intents end by themselves, and an entry of the directory stays that counts for nothing.
    async fn withdraw(&self, owner: &Owner, intents: Vec<Intent>) {
        for intent in intents {
            intent.withdraw(&*self.store).await;
        }
        if let Err(error) = self.forget_user(owner).await {
            tracing::debug!(%error, "a user without sessions stays in the directory");
        }
    }

    /// Removes a user without sessions from the directory. Returns false if somebody may be about to create one.
    ///
    /// Cost: one round trip if there is a session, otherwise at most seven.
    ///
    /// # Errors
    /// As [`Proof::remove`].
    pub(crate) async fn forget_user(&self, owner: &Owner) -> Result<bool> {
        if self.has_sessions(owner).await? {
            return Ok(true);
        }
        owner.directory_proof()?.remove(&*self.store, self.clock.now(), self.has_sessions(owner)).await
    }

    /// Returns whether a user has any session.
    pub(crate) async fn has_sessions(&self, owner: &Owner) -> Result<bool> {
        let options = ScanOptions::new().with_prefix(SESSIONS).with_limit(1);
        Ok(!self.store.scan(&owner.states()?, options).await?.entries.is_empty())
    }
}
