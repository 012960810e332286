//! Scans: a page is one statement, or statements that see one moment.
//!
//! Without a delimiter a page is one statement. With one, the first rows are read as if there were no groups, which ends most
//! listings; a page that goes on after them is read by *steps* within the server: each shows the rows at a place and moves the
//! place on, behind the first group among them or behind the last row, so that one round trip passes over many groups by
//! seeking. Where keys longer than a head come, which have no order in the index, the page is read patiently: in a transaction of
//! several round trips, the rows of such a head ordered by their tails, and what lies between such heads as any other page.

use super::error::Fault;
use super::key::{HEAD_BYTES, KeyRange, successor};
use super::pool::{Connection, column, reading};
use super::read::{BEGIN_SNAPSHOT, BEGIN_SNAPSHOT_STATEMENTS, Reader};
use super::record::{BODY, BODY_LENGTH, Record, columns};
use super::sql::{Tables, in_range, live, quoted};
use crate::error::Result;
use crate::file::BINARY_PROBE_BYTES;
use crate::store::holding::sought;
use crate::store::page::{PageBuilder, Step, Taken, key_after};
use crate::store::{Namespace, Scan, ScanOptions};
use mysql_async::Row;
use mysql_async::prelude::Queryable;

/// The shortest body in bytes that the server looks into. Below it sending takes as long, or less; from here on a search is no slower where
/// nothing is between the two, and faster the longer the way.
const TESTED_BYTES_MIN: u32 = 16 << 10;

/// How many rows are read at first where groups may follow.
const ROWS_AT_FIRST: usize = 256;

/// How many steps the first round trip of them takes; each further one takes four times as many, from the start of the page.
const STEPS_AT_FIRST: usize = 64;

/// A page that needs more steps than this is read patiently.
const STEPS_MAX: usize = 4_096;

/// How many rows a step shows. Behind the first group among them they are of no use.
const STEP_ROWS: usize = 8;

/// How many rows a statement of a patient scan reads, of those that share a head.
const PATIENT_ROWS: usize = 128;

/// How many steps the first round trip of a patient scan takes, and how many the last ones do.
const PATIENT_STEPS: (usize, usize) = (16, 1_024);

/// A scan of one page.
#[derive(Debug, Clone)]
pub(super) struct ScanRun {
    namespace: Namespace,
    options: ScanOptions,
    now: i64,
}

/// How far the reading of a page came.
enum Reached {
    /// The page is complete.
    End,
    /// It goes on behind what was read.
    Goes,
    /// A key as long as a head was met: this head.
    LongKeys(Vec<u8>),
}

/// The moment that statements show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// One of their own.
    Own,
    /// That of the transaction which is open.
    OfTransaction,
}

/// A page that is being filled with rows as the server sends them.
struct Filling {
    page: PageBuilder,
    /// Rows before this key are passed over.
    from: String,
    prefix_bytes: usize,
    delimiter: Option<String>,
    /// What stands on the page, and the bytes of the bodies among it.
    entries: usize,
    value_bytes: u64,
    is_complete: bool,
}

impl ScanRun {
    /// Starts a scan.
    pub(super) fn new(namespace: Namespace, options: ScanOptions, now: i64) -> Self {
        Self { namespace, options, now }
    }
}

impl Filling {
    /// Starts a page; none when no key can be on it.
    fn new(options: &ScanOptions) -> Option<Self> {
        let page = PageBuilder::new(options.clone());
        let from = page.start()?;
        let delimiter = options.delimiter.map(String::from);
        Some(Self { page, from, prefix_bytes: options.prefix.len(), delimiter, entries: 0, value_bytes: 0, is_complete: false })
    }

    /// Shows the page a row; tells what it answers.
    fn take(&mut self, row: &mut Row, has_body: bool) -> Result<Step, Fault> {
        let body: Option<Vec<u8>> = if has_body { column(row, BODY)? } else { None };
        // Only a statement that may leave bodies out tells their lengths.
        let left_out: Option<u64> = if body.is_none() && row.len() > BODY_LENGTH { column(row, BODY_LENGTH)? } else { None };
        let record = Record::of(row)?;
        if record.key < self.from {
            return Ok(Step::Next);
        }
        let (key, size) = (record.key.clone(), record.size);
        let step = self.page.take(&key, |with_value| match left_out {
            Some(length) if with_value => record.into_item_without(length),
            _ if with_value => record.into_item_with(body).map(Taken::from),
            _ => record.into_item().map(Taken::from),
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

    /// Shows the page rows in the order of the index, up to the first whose place among others only its tail tells. `is_all` says
    /// that there are no more.
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

    /// Tells whether the place of a row among others is told by its tail: others share its head, which is in no group by itself.
    fn needs_tail(&self, row: &Row) -> bool {
        let head = bytes(row, 0);
        if head.len() < HEAD_BYTES || head < self.from.as_bytes() {
            return false;
        }
        let inner = head.get(self.prefix_bytes..).unwrap_or_default();
        self.delimiter.as_ref().is_none_or(|delimiter| !inner.windows(delimiter.len()).any(|window| window == delimiter.as_bytes()))
    }

    /// Returns how many entries more the page takes.
    fn room(&self, options: &ScanOptions) -> usize {
        options.limit.saturating_sub(self.entries)
    }
}

impl Reader {
    /// Reads a page.
    ///
    /// Round trips: one without a delimiter; with one, one for listings of fewer rows than are read at first, groups counted by what
    /// lies in them, and one more for 64 groups, a third for 256, and so on.
    pub(super) async fn scan(&self, run: &ScanRun) -> Result<Scan> {
        reading!(self.pool, connection => self.page(connection, run))
    }

    async fn page(&self, connection: &mut Connection, run: &ScanRun) -> Result<Scan, Fault> {
        let Some(mut filling) = Filling::new(&run.options) else { return Ok(Scan::default()) };
        let range = KeyRange::from(&filling.from, &run.options.prefix);
        if range.is_of_heads() {
            let has_groups = run.options.delimiter.is_some();
            // What lies in groups would count among the bytes of the first rows.
            let is_stepped = has_groups && run.options.with_values;
            let mut reached = if is_stepped { Reached::Goes } else { self.first_rows(connection, run, &range, &mut filling).await? };
            // Several round trips of steps do not show one moment, so each begins where the page does.
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

    /// Reads on as if there were no groups. One round trip.
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
            let sql = page_with_bodies(&self.tables, run.options.values_holding.is_some());
            let page = (namespace, start, end, run.now, limit_number, entries_max, bytes_max);
            match &run.options.values_holding {
                None => connection.conn.exec(sql, page).await?,
                Some(text) => connection.conn.exec(sql, (sought(text), page.0, page.1, page.2, page.3, page.4, page.5, page.6)).await?,
            }
        } else {
            connection.conn.exec(page_of_keys(&self.tables), (namespace, start, end, run.now, limit_number)).await?
        };
        let is_all = rows.len() < limit;
        filling.take_all(rows, with_values, is_all)
    }

    /// Reads on by steps within the server. One round trip.
    async fn steps(
        &self,
        connection: &mut Connection,
        run: &ScanRun,
        range: &KeyRange,
        filling: &mut Filling,
        steps: usize,
        moment: Moment,
    ) -> Result<Reached, Fault> {
        // Each step shows an entry at least, so more steps than entries are of no use.
        let steps = steps.min(filling.room(&run.options).saturating_add(1));
        let delimiter = run.options.delimiter.map(String::from).unwrap_or_default();
        let rows = if run.options.with_values { 1 } else { STEP_ROWS };
        // The variables come first: what they hold when a statement is prepared is what MySQL takes their types from.
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

    /// Reads a page on which keys as long as a head are: by several round trips in one transaction.
    async fn patient(&self, connection: &mut Connection, run: &ScanRun) -> Result<Scan, Fault> {
        let Some(mut filling) = Filling::new(&run.options) else { return Ok(Scan::default()) };
        connection.run(BEGIN_SNAPSHOT.trim_end_matches("; ")).await?;
        let (mut steps, steps_max) = PATIENT_STEPS;
        let mut place = Some(Place::at(filling.from.as_bytes()));
        while let Some(here) = place {
            place = match here {
                Place::Heads(start) => {
                    let next = self.heads(connection, run, &mut filling, start, steps).await?;
                    steps = (steps * 4).min(steps_max);
                    next
                }
                Place::Tails { head, tail } => self.tails(connection, run, &mut filling, head, &tail).await?,
            };
        }
        connection.run("COMMIT").await?;
        Ok(filling.page.finish())
    }

    /// Reads on up to the next key that is as long as a head; returns where to go on, if anywhere.
    async fn heads(
        &self,
        connection: &mut Connection,
        run: &ScanRun,
        filling: &mut Filling,
        start: Vec<u8>,
        steps: usize,
    ) -> Result<Option<Place>, Fault> {
        let range = KeyRange { start, end: KeyRange::of_prefix(&run.options.prefix).end };
        // With a prefix that is longer than a head, all there is shares that head.
        if range.start >= range.end {
            return Ok(None);
        }
        let reached = match run.options.delimiter {
            Some(_) => self.steps(connection, run, &range, filling, steps, Moment::OfTransaction).await?,
            None => self.first_rows(connection, run, &range, filling).await?,
        };
        Ok(match reached {
            Reached::End => None,
            Reached::Goes => Some(Place::at(filling.from.as_bytes())),
            Reached::LongKeys(head) => Some(Place::of_head(head, filling.from.as_bytes())),
        })
    }

    /// Reads on among the rows of a head, from a tail on; returns where to go on, if anywhere. The server reads all of them for
    /// each statement, and sorts them.
    async fn tails(
        &self,
        connection: &mut Connection,
        run: &ScanRun,
        filling: &mut Filling,
        head: Vec<u8>,
        tail: &[u8],
    ) -> Result<Option<Place>, Fault> {
        let ScanRun { namespace, options, now } = run;
        // Of rows with bodies one at a time, so that no body is sent that is not on the page.
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
                Step::Seek(to) => return Ok(Some(Place::at(to.as_bytes()))),
                Step::End => return Ok(None),
            }
        }
        Ok(if is_all { successor(&head).map(Place::Heads) } else { Some(Place::at(filling.from.as_bytes())) })
    }
}

/// Where a patient scan goes on.
enum Place {
    /// At rows by their heads, from one on.
    Heads(Vec<u8>),
    /// At the rows of a head, from a tail on.
    Tails { head: Vec<u8>, tail: Vec<u8> },
}

impl Place {
    fn at(key: &[u8]) -> Self {
        match key.split_at_checked(HEAD_BYTES) {
            Some((head, tail)) if !tail.is_empty() => Self::Tails { head: head.to_vec(), tail: tail.to_vec() },
            _ => Self::Heads(key.to_vec()),
        }
    }

    /// Starts at the rows of a head that are not before a key.
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

/// The rows of a page with their bodies, up to the bytes that end it: the sum of what stands before a row decides whether its body is read.
///
/// Where `may_leave_out`, the first parameter is a text, and a body is left out that neither holds it nor a NUL where that tells binary
/// content. Behind the bodies stand their lengths then, which tell those that were left out from those that are lost.
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

/// How many statements [`prepare_steps`] returns.
const PREPARE_STEPS_STATEMENTS: usize = 4;

/// Prepares the statements of a step: one shows the rows at a place, the other moves the place on. The place and all else stand
/// in variables of the connection.
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
