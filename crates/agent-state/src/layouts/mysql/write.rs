//! The transactions that save and delete.

use super::MysqlStates;
use super::error::Fault;
use super::names::Names;
use crate::contract::{Expected, StateConflict, StateForm, StateVersion};
use crate::layouts::UNCOUNTED_VERSION;
use crate::layouts::list_hash::list_hash;
use crate::layouts::shared::uncounted;
use crate::slot::StateSlot;
use mysql_async::prelude::Queryable;
use mysql_async::{DriverError, IsolationLevel, Params, Transaction, TxOpts, Value};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::retry::Attempts;

/// How many elements of a list one statement inserts, and how many bytes.
const ROWS_AT_ONCE: usize = 500;
const BYTES_AT_ONCE: usize = 1 << 20;

impl MysqlStates {
    /// Saves a single value in one transaction.
    pub(super) async fn try_save(&self, slot: &StateSlot, names: &Names, text: &str, expected: Expected) -> Result<i64, Fault> {
        let mut conn = self.pool.get_conn().await?;
        let mut transaction = conn.start_transaction(read_committed()).await?;
        let done = self.save_within(&mut transaction, slot, names, text, expected).await;
        ended(transaction, done).await
    }

    async fn save_within(
        &self,
        transaction: &mut Transaction<'_>,
        slot: &StateSlot,
        names: &Names,
        text: &str,
        expected: Expected,
    ) -> Result<i64, Fault> {
        let locked = self.lock(transaction, names).await?;
        if locked.is_list() {
            return Err(Fault::Refused(other_form(&names.key, "a list")));
        }
        let current = locked.version();
        if !expected.admits(current) {
            return Err(Fault::Refused(StateConflict::new(slot, &names.key, expected, current).into_error()));
        }
        let saved = match locked.first {
            None => {
                let insert =
                    format!("INSERT INTO {} (session_id, state_key, item_index, state_data, version) VALUES (?, ?, 0, ?, 1)", self.quoted);
                transaction.exec_drop(insert, (names.slot.as_str(), names.key.as_str(), text)).await?;
                1
            }
            Some(stored) if (0..UNCOUNTED_VERSION.cast_signed()).contains(&stored) => {
                let update = format!(
                    "UPDATE {} SET state_data = ?, version = ? WHERE session_id = ? AND state_key = ? AND item_index = 0",
                    self.quoted
                );
                transaction.exec_drop(update, (text, stored + 1, names.slot.as_str(), names.key.as_str())).await?;
                stored + 1
            }
            Some(_) => {
                let message = format!("the stored version of `{}` of the {slot} is not one that AgentScope writes; correct it", names.key);
                return Err(Fault::Refused(Error::new(ErrorKind::Corrupt, message)));
            }
        };
        Ok(saved)
    }

    /// Saves a list in one transaction.
    pub(super) async fn try_save_list(&self, names: &Names, items: &[String]) -> Result<(), Fault> {
        let mut conn = self.pool.get_conn().await?;
        let mut transaction = conn.start_transaction(read_committed()).await?;
        let done = self.save_list_within(&mut transaction, names, items).await;
        ended(transaction, done).await
    }

    async fn save_list_within(&self, transaction: &mut Transaction<'_>, names: &Names, items: &[String]) -> Result<(), Fault> {
        let locked = self.lock(transaction, names).await?;
        if locked.first.is_some() && !locked.is_list() {
            return Err(Fault::Refused(other_form(&names.key, "a single value")));
        }
        let select = format!(
            "SELECT item_index, CAST(state_data AS BINARY) FROM {} WHERE session_id = ? AND state_key = ? ORDER BY item_index FOR UPDATE",
            self.quoted
        );
        let (mut count, mut is_start) = (0, true);
        let mut rows = transaction.exec_iter(select, (names.slot.as_str(), names.key.as_str())).await?;
        while let Some(row) = rows.next().await? {
            let (index, stored): (i64, Vec<u8>) =
                mysql_async::from_row_opt(row).map_err(|error| mysql_async::Error::Driver(DriverError::FromRow { row: error.0 }))?;
            is_start &= i64::try_from(count).is_ok_and(|count| count == index);
            is_start &= items.get(count).is_some_and(|item| item.as_bytes() == stored);
            count += 1;
        }
        rows.drop_result().await?;
        // The hash of an unchanged list stays: it may be that of a running AgentScope.
        if is_start && count == items.len() && locked.has_hash {
            return Ok(());
        }
        if !is_start {
            let delete = format!("DELETE FROM {} WHERE session_id = ? AND state_key = ?", self.quoted);
            transaction.exec_drop(delete, (names.slot.as_str(), names.key.as_str())).await?;
            count = 0;
        }
        while count < items.len() {
            let part = part_of(&items[count..]);
            let places = vec!["(?, ?, ?, ?)"; part.len()].join(", ");
            let insert = format!("INSERT INTO {} (session_id, state_key, item_index, state_data) VALUES {places}", self.quoted);
            let mut values: Vec<Value> = Vec::with_capacity(part.len() * 4);
            for (offset, item) in part.iter().enumerate() {
                values.push(Value::from(names.slot.as_str()));
                values.push(Value::from(names.key.as_str()));
                values.push(Value::from(count + offset));
                values.push(Value::from(item.as_str()));
            }
            transaction.exec_drop(insert, Params::Positional(values)).await?;
            count += part.len();
        }
        let hash = format!(
            "INSERT INTO {} (session_id, state_key, item_index, state_data) VALUES (?, ?, 0, ?) \
             ON DUPLICATE KEY UPDATE state_data = VALUES(state_data)",
            self.quoted
        );
        transaction.exec_drop(hash, (names.slot.as_str(), names.hash.as_str(), list_hash(items))).await?;
        Ok(())
    }

    /// Deletes one form of a key in one transaction.
    pub(super) async fn try_delete(&self, slot: &StateSlot, names: &Names, form: StateForm, expected: Expected) -> Result<(), Fault> {
        let mut conn = self.pool.get_conn().await?;
        let mut transaction = conn.start_transaction(read_committed()).await?;
        let done = self.delete_within(&mut transaction, slot, names, form, expected).await;
        ended(transaction, done).await
    }

    async fn delete_within(
        &self,
        transaction: &mut Transaction<'_>,
        slot: &StateSlot,
        names: &Names,
        form: StateForm,
        expected: Expected,
    ) -> Result<(), Fault> {
        let locked = self.lock(transaction, names).await?;
        let current = locked.version();
        if form == StateForm::Single && !expected.admits(current) {
            return Err(Fault::Refused(StateConflict::new(slot, &names.key, expected, current).into_error()));
        }
        let is_there = match form {
            StateForm::Single => current.is_some(),
            StateForm::List => locked.is_list(),
        };
        if is_there {
            let delete = format!("DELETE FROM {} WHERE session_id = ? AND state_key IN (?, ?)", self.quoted);
            transaction.exec_drop(delete, (names.slot.as_str(), names.key.as_str(), names.hash.as_str())).await?;
        }
        Ok(())
    }

    /// Runs one statement that deletes.
    pub(super) async fn delete_rows(&self, condition: &str, values: Params) -> Result<()> {
        let delete = format!("DELETE FROM {} WHERE {condition}", self.quoted);
        let mut attempts = Attempts::new();
        loop {
            let work = async {
                let mut conn = self.pool.get_conn().await?;
                conn.exec_drop(delete.as_str(), values.clone()).await?;
                Ok::<_, Fault>(())
            };
            if self.settled(work).await?.is_some() {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    /// Locks the rows of a key: the first two of its elements, and the hash.
    async fn lock(&self, transaction: &mut Transaction<'_>, names: &Names) -> Result<Locked, Fault> {
        let statement = format!(
            "SELECT CAST(session_id AS BINARY), CAST(state_key AS BINARY), item_index, version FROM {} \
             WHERE session_id = ? AND state_key IN (?, ?) AND item_index < 2 FOR UPDATE",
            self.quoted
        );
        let rows: Vec<(Vec<u8>, Vec<u8>, i64, i64)> =
            transaction.exec(statement, (names.slot.as_str(), names.key.as_str(), names.hash.as_str())).await?;
        let mut locked = Locked::default();
        for (slot, key, index, version) in rows {
            if slot != names.slot.as_bytes() || (key != names.key.as_bytes() && key != names.hash.as_bytes()) {
                let message = "an id or key that is stored in the table differs from this one only in case, accents or trailing spaces; \
                               this layout cannot tell the two apart, choose another id or key";
                return Err(Fault::Refused(Error::invalid_argument(message)));
            }
            match (key == names.hash.as_bytes(), index) {
                (true, _) => locked.has_hash = true,
                (false, 0) => locked.first = Some(version),
                (false, _) => locked.has_second = true,
            }
        }
        Ok(locked)
    }
}

/// The locked rows of a key.
#[derive(Default)]
struct Locked {
    /// The version in the first row.
    first: Option<i64>,
    has_second: bool,
    has_hash: bool,
}

impl Locked {
    fn is_list(&self) -> bool {
        self.has_hash || self.has_second
    }

    /// Returns the version of the single value; `None` if there is none.
    fn version(&self) -> Option<StateVersion> {
        let stored = self.first.filter(|_| !self.is_list())?;
        Some(u64::try_from(stored).ok().and_then(StateVersion::new).unwrap_or_else(uncounted))
    }
}

/// Returns the elements that the next statement inserts.
fn part_of(items: &[String]) -> &[String] {
    let mut bytes = 0;
    let count = items.iter().take(ROWS_AT_ONCE).take_while(|item| {
        bytes += item.len();
        bytes <= BYTES_AT_ONCE
    });
    &items[..count.count().max(1)]
}

/// Commits a transaction, or rolls it back. One that is only dropped keeps its locks until the pool looks at its connection again.
async fn ended<T>(transaction: Transaction<'_>, done: Result<T, Fault>) -> Result<T, Fault> {
    match done {
        Ok(done) => {
            transaction.commit().await?;
            Ok(done)
        }
        Err(fault) => {
            // The first error is the one to report.
            let _ = transaction.rollback().await;
            Err(fault)
        }
    }
}

fn read_committed() -> TxOpts {
    let mut options = TxOpts::default();
    options.with_isolation_level(IsolationLevel::ReadCommitted);
    options
}

fn other_form(key: &str, form: &str) -> Error {
    Error::unsupported(format!(
        "`{key}` is {form} in this session, and a key has one form in this layout; delete it first, or choose another key"
    ))
}
