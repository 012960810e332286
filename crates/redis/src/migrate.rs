//! The migration from former layouts to the present one, a bounded number of rows and bytes per script.
//!
//! The first script of each step sets a schema that fences the store: every script of every version checks the schema and fails. The last
//! one sets that of the layout that the step leads to. In between, an interrupted migration resumes from the names of the rows. After the
//! first step, a store under the former default prefix is renamed, which a cluster cannot do: there the prefix stays, and the URL names it.
//!
//! A store in a cluster takes one more step, from one slot to a slot for each partition. Its rows are copied to other nodes.

use super::error::Fault;
use super::link::{Lane, Link, Request};
use super::places::Cluster;
use super::reply::Reply;
use super::schema::{BELOW_ROOT, Step, TO_PARTITIONS, TO_SLOTS, is_former, is_of_first_layout, is_of_one_slot, schema_of};
use super::script::{self, Keys};
use super::{open, read, write};
use ::redis::cmd;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::migrate::{
    FORMER_COPY, FORMER_NAME, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, PartitionMove,
    StepCounts, TellMigrate, copy_is_unfinished, partition_moves, partition_moves_of_first_layout, partition_moves_with_listed, range_of,
    root_is_taken, too_long,
};
use treehold_store::{Batch, Namespace, ScanEntry, ScanOptions};

/// The longest namespace in bytes.
const NAMESPACE_BYTES_MAX: usize = 1024;

/// How many rows one script moves, or one command lists.
const ROWS_AT_ONCE: usize = 500;

/// After how many bytes a script ends, at the next row.
const BYTES_AT_ONCE: usize = 4 << 20;

/// A store to migrate, and where it is.
pub(super) struct Move<'m> {
    /// The keys that the store has once it is migrated.
    pub(super) keys: &'m Keys,
    /// The connection for them.
    pub(super) link: &'m Link,
    /// The keys under the former default prefix, and the connection for them, if the URL names no prefix.
    pub(super) former: Option<(&'m Keys, &'m Link)>,
    /// The keys of the partitions, for a store in a cluster.
    pub(super) cluster: Option<&'m Cluster>,
    /// The present time.
    pub(super) now: Timestamp,
}

impl Move<'_> {
    pub(super) async fn run(&self, how: &MigrateOptions, tell: TellMigrate<'_>) -> Result<MigrateReport> {
        let found = schema_of(self.link, self.keys).await?;
        let (keys, link, schema, is_renamed) = if is_former(&found) || self.cluster.is_some() && is_of_one_slot(&found) {
            (self.keys, self.link, found, false)
        } else if found.is_empty() {
            let not_there = || Error::new(ErrorKind::NotFound, "the server holds no store of this name; check the URL").without_effect();
            let (keys, link) = self.former.ok_or_else(not_there)?;
            let found = schema_of(link, keys).await?;
            if !is_of_first_layout(&found) {
                return Err(not_there());
            }
            (keys, link, found, true)
        } else {
            return Ok(MigrateReport::up_to_date());
        };
        if is_renamed && link.address().is_cluster {
            return Err(Error::unsupported(format!(
                "a cluster keeps the store under its former prefix, as its keys cannot be renamed to another slot; add \
                 `?prefix={FORMER_NAME}` to the URL, here and in the configuration"
            )));
        }
        let counts = planned(link, keys, &schema).await?;
        let taken_from = is_renamed.then(|| format!("the prefix `{FORMER_NAME}`"));
        let mut progress = counts.progress();
        let mut rows = counts.into_rows();
        if self.cluster.is_some() {
            let all = namespaces(link, keys).await?.values().sum();
            rows.insert("partitions", all);
            progress.rows_total += all;
        }
        if how.dry_run {
            return Ok(MigrateReport::of(how, rows).with_taken_from(taken_from));
        }
        tell(progress);
        if is_of_first_layout(&schema) {
            move_below_root(link, keys, &mut progress, tell).await?;
            if is_renamed {
                rename(link, keys, self.keys).await?;
            }
            finish_below_root(self.link, self.keys).await?;
        }
        if is_former(&schema_of(self.link, self.keys).await?) {
            move_to_partitions(self.link, self.keys, &mut progress, tell).await?;
        }
        if let Some(cluster) = self.cluster {
            self.spread(cluster, &mut progress, tell).await?;
        }
        Ok(MigrateReport::of(how, rows).with_taken_from(taken_from))
    }

    /// Gives each partition of a store in a cluster keys of its own. Rows are copied before the first is removed, so a migration that was
    /// interrupted copies what is left once more.
    async fn spread(&self, cluster: &Cluster, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
        let (link, keys) = (self.link, self.keys);
        set_schema(link, keys, &TO_SLOTS, TO_SLOTS.during).await?;
        let old = keys.clone().with_schema(TO_SLOTS.during);
        let list = cluster.list();
        open::make(&list.link, &list.keys, 0).await?;
        // It stays beside the mark, and no partition uses a version up to there again, not even one that has lost all its rows.
        cluster.count_from(read::current_version(link, &old).await?.number());
        let texts: Vec<String> = namespaces(link, keys).await?.into_keys().collect();
        let spaces = texts.iter().map(|text| Namespace::from_encoded(text)).collect::<Result<Vec<_>>>()?;
        for (index, namespace) in spaces.iter().enumerate() {
            let partition = namespace.partition();
            let place = cluster.of(&partition);
            if index == 0 || !spaces[index - 1].shares_partition(namespace) {
                cluster.make(&partition, &place, self.now).await?;
            }
            let mut options = ScanOptions::new().with_values(true).with_limit(ROWS_AT_ONCE).with_bytes_max(BYTES_AT_ONCE);
            loop {
                let now = self.now.as_microsecond();
                let page = read::scan(link, &old, namespace, &options, now, read::ROWS_AT_ONCE).await?;
                for batch in copies(namespace, page.entries) {
                    progress.rows += batch.writes.len() as u64;
                    write::commit(&place.link, &place.keys, &batch, self.now).await?;
                }
                tell(*progress);
                match page.next {
                    Some(next) => options.start_after = Some(next),
                    None => break,
                }
            }
        }
        for namespace in &spaces {
            loop {
                let options = ScanOptions::new().with_limit(ROWS_AT_ONCE);
                // Expired rows too.
                let page = read::scan(link, &old, namespace, &options, i64::MIN, read::ROWS_AT_ONCE).await?;
                let batch = page.entries.iter().fold(Batch::new(), |batch, entry| batch.delete(namespace, entry.key()));
                if batch.is_empty() {
                    break;
                }
                write::commit(link, &old, &batch, self.now).await?;
            }
        }
        set_schema(link, keys, &TO_SLOTS, TO_SLOTS.after).await
    }
}

/// Returns the batches that put the rows of a page elsewhere. A large row is in a batch of its own.
fn copies(namespace: &Namespace, entries: Vec<ScanEntry>) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut batch = Batch::new();
    for entry in entries {
        let ScanEntry::Item(item) = entry else { continue };
        if !batch.is_empty() && batch.size_bytes() + item.value.len() > BYTES_AT_ONCE {
            batches.push(std::mem::take(&mut batch));
        }
        batch = batch.restore(namespace, item);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

/// Sets the schema during a step, or after it.
async fn set_schema(link: &Link, keys: &Keys, step: &Step, schema: &str) -> Result<()> {
    let invocation = script::MOVED.on(keys).arg(step.before).arg(step.during).arg(schema);
    let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(Fault::of_write)?;
    let found = Reply::of(answer)?.text()?;
    if found != schema && found != step.after {
        return Err(super::error::of_schema(found.as_bytes()));
    }
    Ok(())
}

/// Moves the rows of the step from the first layout to the second.
async fn move_below_root(link: &Link, keys: &Keys, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
    for name in MOVED {
        let (start, end) = range_of(name);
        let renaming = Renaming { start, end, cut: 0, prefix: MOVED_TO, longest: MOVABLE_BYTES_MAX };
        renaming.run(link, keys, &BELOW_ROOT, progress, tell).await?;
    }
    Ok(())
}

/// Ends the step from the first layout to the second.
async fn finish_below_root(link: &Link, keys: &Keys) -> Result<()> {
    let mut renamed = Vec::new();
    for member in changed(link, keys).await? {
        let first = member.split('/').next().unwrap_or_default();
        if MOVED.contains(&first) {
            let to = if member.len() <= MOVABLE_BYTES_MAX { format!("{MOVED_TO}{member}") } else { String::new() };
            renamed.push((member, to));
        }
    }
    finish(link, keys, &BELOW_ROOT, &renamed).await
}

/// Takes the step from the second layout to the third.
async fn move_to_partitions(link: &Link, keys: &Keys, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
    let is_resumed = schema_of(link, keys).await? == TO_PARTITIONS.during;
    let namespaces: Vec<String> = namespaces(link, keys).await?.into_keys().collect();
    let changed = changed(link, keys).await?;
    let moves = partition_moves_with_listed(&namespaces, &changed.iter().cloned().collect::<Vec<_>>(), is_resumed)?;
    for PartitionMove { from, to, .. } in &moves {
        let (start, end) = (format!("{from}\0"), format!("{from}\u{1}"));
        let longest = if to.is_some() { NAMESPACE_BYTES_MAX } else { 0 };
        let renaming = Renaming { start, end, cut: from.len(), prefix: to.as_deref().unwrap_or_default(), longest };
        renaming.run(link, keys, &TO_PARTITIONS, progress, tell).await?;
    }
    let moves = moves.into_iter().filter(|part| changed.contains(&part.from));
    let renamed: Vec<_> = moves.map(|part| (part.from, part.to.unwrap_or_default())).collect();
    finish(link, keys, &TO_PARTITIONS, &renamed).await
}

/// New names for the rows of a range.
struct Renaming<'r> {
    start: String,
    end: String,
    /// How many bytes of each name are replaced.
    cut: usize,
    /// What replaces them.
    prefix: &'r str,
    /// The longest namespace in bytes whose rows are not removed.
    longest: usize,
}

impl Renaming<'_> {
    async fn run(&self, link: &Link, keys: &Keys, step: &Step, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
        loop {
            let invocation = script::MOVE.on(keys).arg(step.before).arg(step.during).arg(&*self.start).arg(&*self.end);
            let invocation = invocation.number(self.cut).arg(self.prefix).number(self.longest);
            let invocation = invocation.number(ROWS_AT_ONCE).number(BYTES_AT_ONCE);
            let mut reply = Reply::of(link.call(Lane::Large, &Request::Script(invocation)).await.map_err(Fault::of_write)?)?;
            let schema = reply.text()?;
            if schema != step.during && schema != step.after {
                return Err(super::error::of_schema(schema.as_bytes()));
            }
            let (moved, removed) = (reply.number()?, reply.number()?);
            if moved + removed == 0 {
                return Ok(());
            }
            progress.rows += moved;
            tell(*progress);
        }
    }
}

/// Renames the keys of a store, all or none of them.
async fn rename(link: &Link, from: &Keys, to: &Keys) -> Result<()> {
    const SCRIPT: &str = "for index = 1, 4 do redis.call('RENAME', KEYS[index], KEYS[index + 4]) end return 1";
    let mut command = cmd("EVAL");
    command.arg(SCRIPT).arg(8).arg(from.all()).arg(to.all());
    // Sent once: a second one would find nothing to rename.
    link.call(Lane::Small, &Request::Write(command)).await.map_err(Fault::of_write).map(drop)
}

/// Renames members of the list of changed namespaces, and then sets the schema after a step.
async fn finish(link: &Link, keys: &Keys, step: &Step, renamed: &[(String, String)]) -> Result<()> {
    let parts = renamed.chunks(ROWS_AT_ONCE).map(|part| (part, step.during)).chain([(&[][..], step.after)]);
    for (part, schema) in parts {
        let mut invocation = script::MOVED.on(keys).arg(step.before).arg(step.during).arg(schema);
        for (from, to) in part {
            invocation = invocation.arg(&**from).arg(&**to);
        }
        let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(Fault::of_write)?;
        let found = Reply::of(answer)?.text()?;
        if found != schema && found != step.after {
            return Err(super::error::of_schema(found.as_bytes()));
        }
    }
    Ok(())
}

/// Counts what will move; refuses what cannot.
async fn planned(link: &Link, keys: &Keys, schema: &str) -> Result<StepCounts> {
    let mut counts = StepCounts::default();
    let namespaces = namespaces(link, keys).await?;
    let texts: Vec<String> = namespaces.keys().cloned().collect();
    if is_of_one_slot(schema) {
        return Ok(counts);
    }
    let moves = if is_of_first_layout(schema) {
        counts.first = planned_below_root(link, keys, schema == BELOW_ROOT.during).await?;
        partition_moves_of_first_layout(&texts)?
    } else {
        partition_moves(&texts, schema == TO_PARTITIONS.during)?
    };
    for part in &moves {
        counts.add(part, namespaces[&part.from]);
    }
    Ok(counts)
}

/// Counts what the first step will move; refuses what it cannot.
async fn planned_below_root(link: &Link, keys: &Keys, is_resumed: bool) -> Result<BTreeMap<&'static str, u64>> {
    if !is_resumed && !members(link, keys, format!("[{MOVED_TO}"), "(_treehold0", 1).await?.is_empty() {
        return Err(root_is_taken());
    }
    if !members(link, keys, format!("[{FORMER_COPY}"), "(stratafs/copy0", 1).await?.is_empty() {
        return Err(copy_is_unfinished());
    }
    let mut counts = BTreeMap::new();
    for name in MOVED {
        let (start, end) = range_of(name);
        let (mut from, end) = (format!("[{start}").into_bytes(), format!("({end}"));
        let mut count = 0;
        loop {
            let page = members(link, keys, from, &end, ROWS_AT_ONCE).await?;
            let Some(last) = page.last() else { break };
            let is_long = |row: &&Vec<u8>| row.iter().position(|byte| *byte == 0).is_none_or(|end| end > MOVABLE_BYTES_MAX);
            let long = page.iter().filter(is_long).count();
            if name != "indexes" && long > 0 {
                return Err(too_long());
            }
            count += (page.len() - long) as u64;
            from = [b"(", last.as_slice()].concat();
        }
        counts.insert(name, count);
    }
    Ok(counts)
}

/// Lists the texts of all namespaces with rows, each with their number.
async fn namespaces(link: &Link, keys: &Keys) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    // The set always contains an empty member, so the list starts after it.
    let mut from = b"(".to_vec();
    while !from.is_empty() {
        let invocation = script::TEXTS.on(keys).arg(from).number(ROWS_AT_ONCE);
        let mut reply = Reply::of(link.call(Lane::Small, &Request::Script(invocation)).await.map_err(Fault::of_read)?)?;
        from = reply.bytes()?.into();
        while reply.len() > 0 {
            all.insert(reply.text()?, reply.number()?);
        }
    }
    Ok(all)
}

/// Returns the members of the list of changed namespaces, without the one that stands for all others.
async fn changed(link: &Link, keys: &Keys) -> Result<BTreeSet<String>> {
    let command = cmd("ZRANGE").arg(keys.changes()).arg(0).arg(-1).to_owned();
    let mut reply = Reply::of(link.call(Lane::Large, &Request::Read(command)).await.map_err(Fault::of_read)?)?;
    let members: Result<BTreeSet<String>> = (0..reply.len()).map(|_| reply.text()).collect();
    Ok(members?.into_iter().filter(|member| !member.is_empty()).collect())
}

/// Lists rows by name.
async fn members(link: &Link, keys: &Keys, from: impl Into<Vec<u8>>, to: &str, limit: usize) -> Result<Vec<Vec<u8>>> {
    let mut command = cmd("ZRANGEBYLEX");
    command.arg(&keys.all()[1]).arg(from.into()).arg(to).arg("LIMIT").arg(0).arg(limit);
    let answer = link.call(Lane::Large, &Request::Read(command)).await.map_err(Fault::of_read)?;
    let mut reply = Reply::of(answer)?;
    (0..reply.len()).map(|_| Ok(reply.bytes()?.into())).collect()
}
