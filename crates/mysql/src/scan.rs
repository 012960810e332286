//! Scans: each page is one statement, or several that see one moment.
//!
//! Without a delimiter a page is one statement. With one, the first rows are read as if there were no groups, which
//! completes most listings. A longer page continues in *steps* within the server: each step returns the rows at the
//! current position, then moves the position past the first group among them or past the last row, so one round trip
//! seeks past many groups. If keys longer than a head appear, which the index does not order, the page is read by a
//! *patient* scan: a transaction of several round trips that sorts the rows of such a head by their tails and reads the
//! ranges between such heads normally.

use super::error::Fault;
use super::key::{HEAD_BYTES, KeyRange, successor};
use super::pool::{Connection, column, reading};
use super::read::{BEGIN_SNAPSHOT, BEGIN_SNAPSHOT_STATEMENTS, Reader};
use super::record::{BODY, BODY_LENGTH, Record, columns};
use super::sql::{Tables, in_range, live, quoted};
use bytes::Bytes;
use mysql_async::Row;
use mysql_async::prelude::Queryable;
use treehold_core::error::Result;
use treehold_core::file::BINARY_PROBE_BYTES;
use treehold_store::holding::sought;
use treehold_store::page::{PageBuilder, PageRow, Step, key_after};
use treehold_store::{Namespace, Scan, ScanOptions};

/// The shortest body in bytes that the server searches. Below it, sending takes no longer. From here on a search is no
/// slower on a local connection, and faster on a longer one.
const TESTED_BYTES_MIN: u32 = 16 << 10;

/// How many rows are read at first if groups may follow.
const ROWS_AT_FIRST: usize = 256;

/// How many steps the first round trip takes. Each further one takes four times as many, again from the start of the
/// page.
const STEPS_AT_FIRST: usize = 64;

/// Pages that need more steps than this are read by a patient scan.
const STEPS_MAX: usize = 4_096;

/// How many rows a step returns. Those behind the first group among them are discarded.
const STEP_ROWS: usize = 8;

/// How many rows that share a head a statement of a patient scan reads.
const PATIENT_ROWS: usize = 128;

/// How many steps the first round trip of a patient scan takes, and the maximum for later ones.
const PATIENT_STEPS: (usize, usize) = (16, 1_024);

/// A scan for one page.
#[derive(Debug, Clone)]
pub(super) struct ScanRun {
    namespace: Namespace,
    options: ScanOptions,
    /// Bodies that do not contain this may be left out.
    holding: Option<Bytes>,
    now: i64,
}

/// How far a page was read.
enum Reached {
    /// The page is complete.
    End,
    /// The page continues after what was read.
    Goes,
    /// A key with a full-length head was found: this head.
    LongKeys(Vec<u8>),
}

/// The moment that statements see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Each sees its own.
    Own,
    /// All see that of the open transaction.
    OfTransaction,
}

/// A page being filled with the server's rows.
struct Filling {
    page: PageBuilder,
    /// Rows before this key are skipped.
    from: String,
    prefix_bytes: usize,
    delimiter: Option<String>,
    /// The number of entries on the page, and the bytes of the bodies among them.
    entries: usize,
    value_bytes: u64,
    is_complete: bool,
}

impl ScanRun {
    /// Starts a scan.
    pub(super) fn new(namespace: Namespace, options: ScanOptions, now: i64) -> Self {
        Self { namespace, options, holding: None, now }
    }

    /// Allows the server to leave out bodies that do not contain `text`.
    pub(super) fn holding(mut self, text: Bytes) -> Self {
        self.holding = Some(text);
        self
    }
}

impl Filling {
    /// Starts a page; `None` if no key can be on it.
    fn new(options: &ScanOptions) -> Option<Self> {
        let page = PageBuilder::new(options.clone());
        let from = page.start()?;
        let delimiter = options.delimiter.map(String::from);
        Some(Self { page, from, prefix_bytes: options.prefix.len(), delimiter, entries: 0, value_bytes: 0, is_complete: false })
    }

    /// Offers a row to the page and returns its answer.
    fn take(&mut self, row: &mut Row, has_body: bool) -> Result<Step, Fault> {
        let body: Option<Vec<u8>> = if has_body { column(row, BODY)? } else { None };
        // Only statements that may leave bodies out return their lengths.
        let left_out: Option<u64> = if body.is_none() && row.len() > BODY_LENGTH { column(row, BODY_LENGTH)? } else { None };
        let record = Record::of(row)?;
        if record.key < self.from {
            return Ok(Step::Next);
        }
        let (key, size) = (record.key.clone(), record.size);
        let step = self.page.offer(&key, |with_value| match left_out {
            Some(length) if with_value => record.into_item_without(length),
            _ if with_value => record.into_item_with(body).map(PageRow::from),
            _ => record.into_item().map(PageRow::from),
        })?;
        match &step {
            Step::Next => {
                self.from = key_after(&key);
                self.value_bytes = self.value_bytes.saturating_add(size);
            }
            Step::Seek(to) => self.from.clone_from(to),
            Step::End => self.is_complete = true,
        }
        self.entries += 1;
        Ok(step)
    }

    /// Offers rows in index order to the page, up to the first whose position depends on its tail. `is_all` means that
    /// there are no more rows.
    fn take_all(&mut self, rows: Vec<Row>, has_body: bool, is_all: bool) -> Result<Reached, Fault> {
        for mut row in rows {
            if self.needs_tail(&row) {
                return Ok(Reached::LongKeys(column(&mut row, 0)?));
            }
            if self.take(&mut row, has_body)? == Step::End {
                return Ok(Reached::End);
            }
        }
        Ok(if is_all { Reached::End } else { Reached::Goes })
    }

    /// Returns whether the position of a row depends on its tail: its head has full length and does not fall into a
    /// group by itself.
    fn needs_tail(&self, row: &Row) -> bool {
        let head = bytes(row, 0);
        if head.len() < HEAD_BYTES || head < self.from.as_bytes() {
            return false;
        }
        let inner = head.get(self.prefix_bytes..).unwrap_or_default();
        self.delimiter.as_ref().is_none_or(|delimiter| !inner.windows(delimiter.len()).any(|window| window == delimiter.as_bytes()))
    }

    /// Returns how many more entries fit on the page.
    fn room(&self, options: &ScanOptions) -> usize {
        options.limit.saturating_sub(self.entries)
    }
}

impl Reader {
    /// Reads a page.
    ///
    /// Round trips: one without a delimiter. With one, a single round trip suffices for listings of fewer rows than are
    /// read at first, counting the rows inside groups; a second covers 64 groups, a third 256, and so on.
    pub(super) async fn scan(&self, run: &ScanRun) -> Result<Scan> {
        reading!(self.pool, connection => self.page(connection, run))
    }

    async fn page(&self, connection: &mut Connection, run: &ScanRun) -> Result<Scan, Fault> {
        let Some(mut filling) = Filling::new(&run.options) else { return Ok(Scan::default()) };
        let range = KeyRange::from(&filling.from, &run.options.prefix);
        if range.is_of_heads() {
            let has_groups = run.options.delimiter.is_some();
            // With bodies, the rows inside groups would count toward the bytes of the first read.
            let is_stepped = has_groups && run.options.with_values;
            let mut reached = if is_stepped { Reached::Goes } else { self.first_rows(connection, run, &range, &mut filling).await? };
            // Several round trips of steps do not see one moment, so each starts over at the beginning of the page.
            let mut steps = STEPS_AT_FIRST;
            while has_groups && steps <= STEPS_MAX && matches!(reached, Reached::Goes) {
                let Some(anew) = Filling::new(&run.options) else { return Ok(Scan::default()) };
                filling = anew;
                reached = self.steps(connection, run, &range, &mut filling, steps, Moment::Own).await?;
                steps *= 4;
            }
            if matches!(reached, Reached::End) {
                return Ok(filling.page.finish());
            }
        }
        self.patient(connection, run).await
    }

    /// Continues reading as if there were no groups. One round trip.
    async fn first_rows(
        &self,
        connection: &mut Connection,
        run: &ScanRun,
        range: &KeyRange,
        filling: &mut Filling,
    ) -> Result<Reached, Fault> {
        let room = filling.room(&run.options);
        let wanted = room.saturating_add(1);
        let limit = if run.options.delimiter.is_some() { wanted.min(ROWS_AT_FIRST) } else { wanted };
        let with_values = run.options.with_values;
        let namespace = run.namespace.encoded().as_bytes();
        let (start, end, limit_number) = (range.start.as_slice(), range.end.as_slice(), limit as u64);
        let rows: Vec<Row> = if with_values {
            let entries_max = if filling.page.is_full() { 0 } else { room as u64 };
            let bytes_max = (run.options.bytes_max as u64).saturating_sub(filling.value_bytes);
            let sql = page_with_bodies(&self.tables, run.holding.is_some());
            let page = (namespace, start, end, run.now, limit_number, entries_max, bytes_max);
            match &run.holding {
                None => connection.conn.exec(sql, page).await?,
                Some(text) => connection.conn.exec(sql, (sought(text), page.0, page.1, page.2, page.3, page.4, page.5, page.6)).await?,
            }
        } else {
            connection.conn.exec(page_of_keys(&self.tables), (namespace, start, end, run.now, limit_number)).await?
        };
        let is_all = rows.len() < limit;
        filling.take_all(rows, with_values, is_all)
    }

    /// Continues reading by steps within the server. One round trip.
    async fn steps(
        &self,
        connection: &mut Connection,
        run: &ScanRun,
        range: &KeyRange,
        filling: &mut Filling,
        steps: usize,
        moment: Moment,
    ) -> Result<Reached, Fault> {
        // Each step returns at least one entry, so more steps than entries are useless.
        let steps = steps.min(filling.room(&run.options).saturating_add(1));
        let delimiter = run.options.delimiter.map(String::from).unwrap_or_default();
        let rows = if run.options.with_values { 1 } else { STEP_ROWS };
        // Set the variables first: MySQL takes their types from the values they have when a statement is prepared.
        let mut text = format!(
            "SET @sn = {}, @ss = {}, @se = {}, @st = {}, @sd = {}, @su = {}, @sp = {}, @sz = x'00', @sr = {rows}, \
             @sb = {}, @sm = {}, @sc = {}, @sl = {}; ",
            quoted(run.namespace.encoded().as_bytes()),
            quoted(&range.start),
            quoted(&range.end),
            run.now,
            quoted(delimiter.as_bytes()),
            quoted(&successor(delimiter.as_bytes()).unwrap_or_default()),
            run.options.prefix.len() + 1,
            filling.value_bytes,
            run.options.bytes_max,
            filling.entries,
            run.options.limit,
        );
        let mut others = 1;
        if !connection.has_steps {
            text += &prepare_steps(&self.tables);
            others += PREPARE_STEPS_STATEMENTS;
        }
        if moment == Moment::Own {
            text += BEGIN_SNAPSHOT;
            others += BEGIN_SNAPSHOT_STATEMENTS;
        }
        let (show, advance) = if run.options.with_values { ("sf_show_body", "sf_advance_body") } else { ("sf_show", "sf_advance") };
        for _ in 0..steps {
            text += &format!("EXECUTE {show} USING @sr; EXECUTE {advance} USING @sr; ");
        }
        text += if moment == Moment::Own { "COMMIT" } else { "DO 0" };
        let sets = connection.run(text).await?;
        connection.has_steps = true;
        for rows in sets.into_iter().skip(others).step_by(2).take(steps) {
            let is_all = rows.is_empty();
            let reached = filling.take_all(rows, run.options.with_values, is_all)?;
            if !matches!(reached, Reached::Goes) {
                return Ok(reached);
            }
        }
        Ok(Reached::Goes)
    }

    /// Reads a page with keys that have full-length heads, by several round trips in one transaction.
    async fn patient(&self, connection: &mut Connection, run: &ScanRun) -> Result<Scan, Fault> {
        let Some(mut filling) = Filling::new(&run.options) else { return Ok(Scan::default()) };
        connection.run(BEGIN_SNAPSHOT.trim_end_matches("; ")).await?;
        let (mut steps, steps_max) = PATIENT_STEPS;
        let mut place = Some(ScanFrom::at(filling.from.as_bytes()));
        while let Some(here) = place {
            place = match here {
                ScanFrom::Heads(start) => {
                    let next = self.heads(connection, run, &mut filling, start, steps).await?;
                    steps = (steps * 4).min(steps_max);
                    next
                }
                ScanFrom::Tails { head, tail } => self.tails(connection, run, &mut filling, head, &tail).await?,
            };
        }
        connection.run("COMMIT").await?;
        Ok(filling.page.finish())
    }

    /// Continues up to the next full-length head. Returns where to continue, if anywhere.
    async fn heads(
        &self,
        connection: &mut Connection,
        run: &ScanRun,
        filling: &mut Filling,
        start: Vec<u8>,
        steps: usize,
    ) -> Result<Option<ScanFrom>, Fault> {
        let range = KeyRange { start, end: KeyRange::of_prefix(&run.options.prefix).end };
        // With a prefix longer than a head, all matching rows share that head.
        if range.start >= range.end {
            return Ok(None);
        }
        let reached = match run.options.delimiter {
            Some(_) => self.steps(connection, run, &range, filling, steps, Moment::OfTransaction).await?,
            None => self.first_rows(connection, run, &range, filling).await?,
        };
        Ok(match reached {
            Reached::End => None,
            Reached::Goes => Some(ScanFrom::at(filling.from.as_bytes())),
            Reached::LongKeys(head) => Some(ScanFrom::of_head(head, filling.from.as_bytes())),
        })
    }

    /// Continues among the rows of a head, from a tail on. Returns where to continue, if anywhere. For each statement
    /// the server reads and sorts all rows of the head.
    async fn tails(
        &self,
        connection: &mut Connection,
        run: &ScanRun,
        filling: &mut Filling,
        head: Vec<u8>,
        tail: &[u8],
    ) -> Result<Option<ScanFrom>, Fault> {
        let ScanRun { namespace, options, now, .. } = run;
        // Read rows with bodies one at a time, so that no body is sent that is not on the page.
        let (limit, with_body) = if options.with_values { (1, !filling.page.is_full()) } else { (PATIENT_ROWS, false) };
        let range = KeyRange { start: [head.as_slice(), tail].concat(), end: KeyRange::of_prefix(&options.prefix).end };
        let Tables { items, bodies, .. } = &self.tables;
        let body = if with_body {
            format!(", (SELECT body FROM {bodies} b WHERE b.namespace = i.namespace AND b.head = i.head AND b.digest = i.digest)")
        } else {
            String::new()
        };
        let sql = format!(
            "SELECT {}{body} FROM {items} i FORCE INDEX (PRIMARY) WHERE {} AND head = {} AND {} ORDER BY tail LIMIT {limit}",
            columns("i."),
            in_range("", namespace, &range),
            quoted(&head),
            live(now),
        );
        let rows: Vec<Row> = connection.run(sql).await?.into_iter().flatten().collect();
        let is_all = rows.len() < limit;
        for mut row in rows {
            match filling.take(&mut row, with_body)? {
                Step::Next => {}
                Step::Seek(to) => return Ok(Some(ScanFrom::at(to.as_bytes()))),
                Step::End => return Ok(None),
            }
        }
        Ok(if is_all { successor(&head).map(ScanFrom::Heads) } else { Some(ScanFrom::at(filling.from.as_bytes())) })
    }
}

/// Where a patient scan continues.
enum ScanFrom {
    /// At rows ordered by head, from this one on.
    Heads(Vec<u8>),
    /// At the rows of one head, from this tail on.
    Tails { head: Vec<u8>, tail: Vec<u8> },
}

impl ScanFrom {
    fn at(key: &[u8]) -> Self {
        match key.split_at_checked(HEAD_BYTES) {
            Some((head, tail)) if !tail.is_empty() => Self::Tails { head: head.to_vec(), tail: tail.to_vec() },
            _ => Self::Heads(key.to_vec()),
        }
    }

    /// Continues at the rows of a head, from the key `from` on.
    fn of_head(head: Vec<u8>, from: &[u8]) -> Self {
        let tail = from.strip_prefix(head.as_slice()).unwrap_or_default().to_vec();
        Self::Tails { head, tail }
    }
}

fn bytes(row: &Row, index: usize) -> &[u8] {
    match row.as_ref(index) {
        Some(mysql_async::Value::Bytes(bytes)) => bytes,
        _ => &[],
    }
}

fn page_of_keys(tables: &Tables) -> String {
    format!(
        "SELECT {} FROM {} FORCE INDEX (PRIMARY) WHERE namespace = ? AND head >= ? AND head < ? AND {} \
         ORDER BY namespace, head, digest LIMIT ?",
        columns(""),
        tables.items,
        live("?")
    )
}

/// Returns the statement that reads a page with bodies. A running sum over the preceding rows decides which bodies are
/// still read.
///
/// With `may_leave_out`, the first parameter is a text; bodies that contain neither it nor a NUL in the part that
/// identifies binary content are left out. The lengths of the bodies are then read too, to distinguish left-out bodies
/// from lost ones.
fn page_with_bodies(tables: &Tables, may_leave_out: bool) -> String {
    let body = if may_leave_out {
        format!(
            "IF(page.size < {TESTED_BYTES_MIN} OR LOCATE(?, bodies.body) > 0 OR LOCATE(x'00', LEFT(bodies.body, {BINARY_PROBE_BYTES})) > 0, \
             bodies.body, NULL), LENGTH(bodies.body)"
        )
    } else {
        "bodies.body".to_owned()
    };
    format!(
        "SELECT {}, {body} FROM \
         (SELECT rows_of_page.*, SUM(size) OVER (ORDER BY head, digest ROWS UNBOUNDED PRECEDING) - size AS before_bytes, \
          ROW_NUMBER() OVER (ORDER BY head, digest) AS place FROM \
          (SELECT namespace, digest, {} FROM {} FORCE INDEX (PRIMARY) WHERE namespace = ? AND head >= ? AND head < ? AND {} \
           ORDER BY namespace, head, digest LIMIT ?) rows_of_page) page \
         LEFT JOIN {} bodies ON page.place <= ? AND (page.before_bytes < ? OR page.place = 1) \
          AND bodies.namespace = page.namespace AND bodies.head = page.head AND bodies.digest = page.digest \
         ORDER BY page.head, page.digest",
        columns("page."),
        columns(""),
        tables.items,
        live("?"),
        tables.bodies,
    )
}

/// How many statements [`prepare_steps`] contains.
const PREPARE_STEPS_STATEMENTS: usize = 4;

/// Prepares the statements of a step: one returns the rows at the position, the other advances it. The position and all
/// parameters are session variables.
fn prepare_steps(tables: &Tables) -> String {
    let Tables { items, bodies, .. } = tables;
    let rows = format!(
        "FROM {items} i FORCE INDEX (PRIMARY) WHERE namespace = @sn AND head >= @ss AND head < @se AND {} \
         ORDER BY namespace, head, digest LIMIT ?",
        live("@st")
    );
    let columns = columns("i.");
    let is_grouped = "LOCATE(@sd, head, @sp) > 0";
    let body = format!(
        "IF({is_grouped} OR @sc >= @sl OR (@sb >= @sm AND @sb > 0), NULL, \
         (SELECT body FROM {bodies} b WHERE b.namespace = i.namespace AND b.head = i.head AND b.digest = i.digest))"
    );
    let behind =
        format!("COALESCE(MIN(IF({is_grouped}, CONCAT(LEFT(head, LOCATE(@sd, head, @sp) - 1), @su), NULL)), CONCAT(MAX(head), @sz), @ss)");
    let taken = format!("@sb + COALESCE(SUM(IF({is_grouped}, 0, size)), 0)");
    format!(
        "PREPARE sf_show FROM 'SELECT {columns} {rows}'; \
         PREPARE sf_show_body FROM 'SELECT {columns}, {body} {rows}'; \
         PREPARE sf_advance FROM 'SELECT {behind} INTO @ss FROM (SELECT head, size {rows}) shown'; \
         PREPARE sf_advance_body FROM 'SELECT {behind}, {taken}, @sc + COUNT(*) INTO @ss, @sb, @sc FROM (SELECT head, size {rows}) shown'; "
    )
}
