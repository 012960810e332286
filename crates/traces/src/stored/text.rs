//! Checks of what callers write.

use crate::model::OtherFields;
use serde::Serialize;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::scope::check_id;

/// The most tokens of one message: the greatest integer that every JSON reader represents exactly.
const TOKENS_MAX: u64 = 1 << 53;

/// The highest cost of one message. No sum of costs reaches the end of the numbers.
const COST_MAX: f64 = 1e12;

/// Returns the JSON of a value for a row.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge) over `bytes_max`, [`InvalidArgument`](ErrorKind::InvalidArgument) for JSON that nests too deep.
pub(super) fn checked<T: Serialize>(what: &str, value: &T, bytes_max: usize) -> Result<Vec<u8>> {
    let json = Json::of(value)?;
    let bytes = json.as_str().len();
    if bytes > bytes_max {
        let message = format!("the {what} has {bytes} bytes as JSON and may have at most {bytes_max}; shorten it");
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    Ok(json.as_str().as_bytes().to_vec())
}

/// Returns fields without those that have a meaning of their own: a value never has one field twice.
pub(super) fn without(other: &OtherFields, names: &[&str]) -> OtherFields {
    other.iter().filter(|(name, _)| !names.contains(&name.as_str())).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Checks the id of a message or goal.
pub(super) fn check_key(what: &str, id: &str) -> Result<()> {
    if id.contains('/') {
        return Err(Error::invalid_argument(format!("the {what} id contains `/`; choose another one")));
    }
    check_id(what, id)
}

/// Checks a short name, such as a role.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
        return Err(Error::invalid_argument(format!("the {what} must have 1 to 255 bytes and no control character")));
    }
    Ok(())
}

/// Checks what a message took.
pub(super) fn check_usage(tokens: Option<u64>, cost: Option<f64>) -> Result<()> {
    if tokens.is_some_and(|tokens| tokens > TOKENS_MAX) {
        return Err(Error::invalid_argument(format!("`tokens` is over {TOKENS_MAX}; count again")));
    }
    // Also false for a cost that is not a number.
    if cost.is_some_and(|cost| !(0.0..=COST_MAX).contains(&cost)) {
        return Err(Error::invalid_argument(format!("`cost` must be a number from 0 to {COST_MAX:e}")));
    }
    Ok(())
}

/// Returns the size of a page.
pub(super) fn page_limit(limit: usize, max: usize) -> Result<usize> {
    if limit == 0 {
        return Err(Error::invalid_argument("`limit` is 0; ask for at least one"));
    }
    Ok(limit.min(max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_numbers_from_zero_up() {
        for cost in [f64::NAN, f64::INFINITY, -1.0, -f64::MIN_POSITIVE, 1e13] {
            assert!(check_usage(None, Some(cost)).is_err(), "{cost}");
        }
        for cost in [0.0, -0.0, 1e-12, COST_MAX] {
            assert!(check_usage(Some(TOKENS_MAX), Some(cost)).is_ok(), "{cost}");
        }
        assert!(check_usage(Some(u64::MAX), None).is_err());
    }
}
