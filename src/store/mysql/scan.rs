//! Scans: a page is one statement, or statements that see one moment.
//!
//! Without a delimiter a page is one statement. With one, the first rows are read as if there were no groups, which ends most
//! listings; a page that goes on after them is read by *steps* within the server: each shows the rows at a place and moves the
//! place on, behind the first group among them or behind the last row, so that one round trip passes over many groups by
//! seeking. Where keys longer than a head meet, which have no order in the index, the page is read patiently: statement by
//! statement in one transaction, the rows of such a head ordered by their tails.

use super::error::Fault;
use super::key::{HEAD_BYTES, KeyRange, successor};
use super::pool::{Connection, column, reading};
use super::read::{BEGIN_SNAPSHOT, BEGIN_SNAPSHOT_STATEMENTS, Reader};
use super::record::{BODY, Record, columns};
use super::sql::{Tables, in_range, live, quoted};
use crate::error::Result;
use crate::store::page::{PageBuilder, Step, key_after};
use crate::store::{Namespace, Scan, ScanOptions};
use mysql_async::Row;
use mysql_async::prelude::Queryable;

/// How many rows are read at first where groups may follow.
const ROWS_AT_FIRST: usize = 256;

/// How many steps the first round trip of them takes; each further one takes four times as many, from the start of the page.
const STEPS_AT_FIRST: usize = 64;

/// A page that needs more steps than this is read patiently.
const STEPS_MAX: usize = 4_096;

/// How many rows a step shows. Behind the first group among them they are of no use.
const STEP_ROWS: usize = 8;

/// How many rows a statement of a patient scan reads.
const PATIENT_ROWS: usize = 128;

/// A scan of one page.
#[derive(Debug, Clone)]
pub(super) struct ScanRun {
    namespace: Namespace,
    options: ScanOptions,
    now: i64,
}

/// How far an attempt to read a page came.
enum Attempt {
    /// The page is complete.
    Done(Scan),
    /// It goes on behind what was read.
    Goes,
    /// A key as long as a head was met.
    LongKeys,
}

/// A page that is being filled with rows as the server sends them.
struct Filling {
    page: PageBuilder,
    /// Rows before this key are passed over.
    from: String,
    prefix_bytes: usize,
    delimiter: Option<String>,
    is_complete: bool,
    met_long_key: bool,
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
        Some(Self { page, from, prefix_bytes: options.prefix.len(), delimiter, is_complete: false, met_long_key: false })
    }

    /// Shows the page a row; tells what it answers.
    fn take(&mut self, row: &mut Row, has_body: bool) -> Result<Step, Fault> {
        let body: Option<Vec<u8>> = if has_body { column(row, BODY)? } else { None };
        let record = Record::of(row)?;
        if record.key < self.from {
            return Ok(Step::Next);
        }
        let key = record.key.clone();
        let step = self.page.take(&key, |with_value| if with_value { record.into_item_with(body) } else { record.into_item() })?;
        match &step {
            Step::Next => self.from = key_after(&key),
            Step::Seek(to) => self.from.clone_from(to),
            Step::End => self.is_complete = true,
        }
        Ok(step)
    }

    /// Shows the page rows in the order of the index, up to the first whose place among others only its tail tells.
    fn take_all(&mut self, rows: Vec<Row>, has_body: bool) -> Result<(), Fault> {
        for mut row in rows {
            if self.needs_tail(&row) {
                self.met_long_key = true;
                return Ok(());
            }
            if self.take(&mut row, has_body)? == Step::End {
                return Ok(());
            }
        }
        Ok(())
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

    fn attempt(self, is_all: bool) -> Attempt {
        if self.met_long_key {
            Attempt::LongKeys
        } else if self.is_complete || is_all {
            Attempt::Done(self.page.finish())
        } else {
            Attempt::Goes
        }
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
        let Some(start) = PageBuilder::new(run.options.clone()).start() else { return Ok(Scan::default()) };
        let range = KeyRange::from(&start, &run.options.prefix);
        if !range.is_of_heads() {
            return self.patient(connection, run).await;
        }
        // What lies in groups would count among the bytes of the first rows.
        let has_groups = run.options.delimiter.is_some();
        let mut attempt =
            if has_groups && run.options.with_values { Attempt::Goes } else { self.first_rows(connection, run, &range).await? };
        let mut steps = STEPS_AT_FIRST;
        loop {
            match attempt {
                Attempt::Done(scan) => return Ok(scan),
                Attempt::Goes if has_groups && steps <= STEPS_MAX => attempt = self.steps(connection, run, &range, steps).await?,
                Attempt::Goes | Attempt::LongKeys => return self.patient(connection, run).await,
            }
            steps *= 4;
        }
    }

    /// Reads the page as if there were no groups.
    async fn first_rows(&self, connection: &mut Connection, run: &ScanRun, range: &KeyRange) -> Result<Attempt, Fault> {
        let Some(mut filling) = Filling::new(&run.options) else { return Ok(Attempt::Done(Scan::default())) };
        let wanted = run.options.limit.saturating_add(1);
        let limit = if run.options.delimiter.is_some() { wanted.min(ROWS_AT_FIRST) } else { wanted };
        let with_values = run.options.with_values;
        let namespace = run.namespace.encoded().as_bytes();
        let (start, end, limit_number) = (range.start.as_slice(), range.end.as_slice(), limit as u64);
        let rows: Vec<Row> = if with_values {
            let (entries_max, bytes_max) = (run.options.limit as u64, run.options.bytes_max as u64);
            let parameters = (entries_max, bytes_max, namespace, start, end, run.now, limit_number);
            connection.conn.exec(page_with_bodies(&self.tables), parameters).await?
        } else {
            connection.conn.exec(page_of_keys(&self.tables), (namespace, start, end, run.now, limit_number)).await?
        };
        let is_all = rows.len() < limit;
        filling.take_all(rows, with_values)?;
        Ok(filling.attempt(is_all))
    }

    /// Reads the page by steps within the server, in one round trip and as of one moment.
    async fn steps(&self, connection: &mut Connection, run: &ScanRun, range: &KeyRange, steps: usize) -> Result<Attempt, Fault> {
        let Some(mut filling) = Filling::new(&run.options) else { return Ok(Attempt::Done(Scan::default())) };
        // Each step shows an entry at least, so more steps than entries are of no use.
        let steps = steps.min(run.options.limit.saturating_add(1));
        let delimiter = run.options.delimiter.map(String::from).unwrap_or_default();
        let rows = if run.options.with_values { 1 } else { STEP_ROWS };
        // The variables come first: what they hold when a statement is prepared is what MySQL takes their types from.
        let mut text = format!(
            "SET @sn = {}, @ss = {}, @se = {}, @st = {}, @sd = {}, @su = {}, @sp = {}, @sz = x'00', @sr = {rows}, \
             @sb = 0, @sm = {}, @sc = 0, @sl = {}; ",
            quoted(run.namespace.encoded().as_bytes()),
            quoted(&range.start),
            quoted(&range.end),
            run.now,
            quoted(delimiter.as_bytes()),
            quoted(&successor(delimiter.as_bytes()).unwrap_or_default()),
            run.options.prefix.len() + 1,
            run.options.bytes_max,
            run.options.limit,
        );
        let mut others = BEGIN_SNAPSHOT_STATEMENTS + 1;
        if !connection.has_steps {
            text += &prepare_steps(&self.tables);
            others += PREPARE_STEPS_STATEMENTS;
        }
        text += BEGIN_SNAPSHOT;
        let (show, advance) = if run.options.with_values { ("sf_show_body", "sf_advance_body") } else { ("sf_show", "sf_advance") };
        for _ in 0..steps {
            text += &format!("EXECUTE {show} USING @sr; EXECUTE {advance} USING @sr; ");
        }
        text += "COMMIT";
        let sets = connection.run(text).await?;
        connection.has_steps = true;
        let mut is_all = false;
        for rows in sets.into_iter().skip(others).step_by(2).take(steps) {
            is_all = rows.is_empty();
            filling.take_all(rows, run.options.with_values)?;
            if is_all || filling.is_complete || filling.met_long_key {
                break;
            }
        }
        Ok(filling.attempt(is_all))
    }

    /// Reads a page on which keys longer than a head may be: statement by statement in one transaction.
    ///
    /// Rows that share a head are ordered by the server, which reads all of them for each statement.
    async fn patient(&self, connection: &mut Connection, run: &ScanRun) -> Result<Scan, Fault> {
        let Some(mut filling) = Filling::new(&run.options) else { return Ok(Scan::default()) };
        connection.run(BEGIN_SNAPSHOT.trim_end_matches("; ").to_owned()).await?;
        let mut place = Some(Place::at(filling.from.as_bytes()));
        while let Some(here) = place {
            place = self.patient_rows(connection, run, &mut filling, here).await?;
        }
        connection.run("COMMIT".to_owned()).await?;
        Ok(filling.page.finish())
    }

    /// Shows the page the rows of one statement; returns where to go on, if anywhere.
    async fn patient_rows(
        &self,
        connection: &mut Connection,
        run: &ScanRun,
        filling: &mut Filling,
        place: Place,
    ) -> Result<Option<Place>, Fault> {
        let ScanRun { namespace, options, now } = run;
        let end = KeyRange::of_prefix(&options.prefix).end;
        // A page with bodies is read row by row, so that no body is sent that is not on it.
        let (limit, with_body) = if options.with_values { (1, !filling.page.is_full()) } else { (PATIENT_ROWS, false) };
        let (range, order) = match &place {
            Place::Heads(start) => (in_range("", namespace, &KeyRange { start: start.clone(), end }), "namespace, head, digest"),
            Place::Tails { head, tail } => {
                let start = [head.as_slice(), tail].concat();
                let sql = in_range("", namespace, &KeyRange { start, end });
                (format!("{sql} AND head = {}", quoted(head)), "tail")
            }
        };
        let Tables { items, bodies, .. } = &self.tables;
        let body = if with_body {
            format!(", (SELECT body FROM {bodies} b WHERE b.namespace = i.namespace AND b.head = i.head AND b.digest = i.digest)")
        } else {
            String::new()
        };
        let sql = format!(
            "SELECT {}{body} FROM {items} i FORCE INDEX (PRIMARY) WHERE {range} AND {} ORDER BY {order} LIMIT {limit}",
            columns("i."),
            live(now),
        );
        let rows: Vec<Row> = connection.run(sql).await?.into_iter().flatten().collect();
        let is_all = rows.len() < limit;
        let mut last = None;
        for mut row in rows {
            if matches!(place, Place::Heads(_)) && is_long(&row) {
                return Ok(Some(Place::Tails { head: column(&mut row, 0)?, tail: Vec::new() }));
            }
            let behind = [bytes(&row, 0), bytes(&row, 1), &[0]].concat();
            match filling.take(&mut row, with_body)? {
                Step::Next => last = Some(behind),
                Step::Seek(to) => return Ok(Some(Place::at(to.as_bytes()))),
                Step::End => return Ok(None),
            }
        }
        Ok(match (place, last) {
            (_, Some(behind)) if !is_all => Some(Place::at(&behind)),
            (Place::Tails { head, .. }, _) => successor(&head).map(Place::Heads),
            (Place::Heads(_), _) => None,
        })
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
}

/// Tells whether the head of a row has full length, so that others may share it.
fn is_long(row: &Row) -> bool {
    bytes(row, 0).len() >= HEAD_BYTES
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

/// The rows of a page with their bodies, up to the bytes that end it: the sum of what stands before a row decides whether its body is sent.
fn page_with_bodies(tables: &Tables) -> String {
    format!(
        "SELECT {}, IF(page.place <= ? AND (page.before_bytes < ? OR page.place = 1), bodies.body, NULL) FROM \
         (SELECT rows_of_page.*, SUM(size) OVER (ORDER BY head, digest ROWS UNBOUNDED PRECEDING) - size AS before_bytes, \
          ROW_NUMBER() OVER (ORDER BY head, digest) AS place FROM \
          (SELECT namespace, digest, {} FROM {} FORCE INDEX (PRIMARY) WHERE namespace = ? AND head >= ? AND head < ? AND {} \
           ORDER BY namespace, head, digest LIMIT ?) rows_of_page) page \
         LEFT JOIN {} bodies ON bodies.namespace = page.namespace AND bodies.head = page.head AND bodies.digest = page.digest \
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
