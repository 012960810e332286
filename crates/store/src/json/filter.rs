//! Matching of JSON values against filters, without I/O.

use serde_json::{Map, Number, Value};
use std::cmp::Ordering;
use treehold_core::error::{Error, Result};

/// The maximum nesting depth of a filter.
const DEPTH_MAX: usize = 32;

/// The most fields and comparisons of a filter, which are all tried on each row.
const TESTS_MAX: usize = 256;

/// Selects the values that a search returns.
///
/// Written as JSON: `{"status": "open", "minutes": {"$gt": 5, "$lte": 60}, "author": {"name": "ada"}}`. All fields must
/// match. A field matches by equality, by operators (`$eq $ne $gt $gte $lt $lte`, all of which must hold) or, given an
/// object without operators, if each of its fields matches. Numbers compare as numbers (`1` equals `1.0`) and strings
/// bytewise; values of different kinds are never less or greater. An absent field equals nothing, so `$ne` matches it.
/// LangGraph's in-memory store differs: there the string `5` is greater than 4, an absent field equals `null`, and `{}`
/// matches any object.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JsonFilter {
    fields: Vec<(String, Test)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    All(Vec<Comparison>),
    Beneath(JsonFilter),
}

#[derive(Debug, Clone, PartialEq)]
struct Comparison {
    operator: Operator,
    operand: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl JsonFilter {
    /// Parses a filter from JSON.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a filter that is not an object, an unknown
    /// operator, an object that mixes operators and fields, an order comparison with a value that has no order, and a
    /// filter that nests deeper than 32 levels or has over 256 fields and comparisons.
    pub fn parse(filter: &Value) -> Result<Self> {
        let Value::Object(fields) = filter else {
            return Err(Error::invalid_argument("a filter must be an object, such as `{\"status\": \"open\"}`"));
        };
        if let Some(operator) = fields.keys().find(|name| name.starts_with('$')) {
            return Err(Error::invalid_argument(format!(
                "the operator `{operator}` is in the place of a field name; write `{{\"field\": {{\"{operator}\": …}}}}`"
            )));
        }
        Self::of_fields(fields, 0, &mut 0)
    }

    fn of_fields(fields: &Map<String, Value>, depth: usize, tests: &mut usize) -> Result<Self> {
        count(tests, fields.len())?;
        if depth > DEPTH_MAX {
            return Err(Error::invalid_argument(format!("the filter is more than {DEPTH_MAX} levels deep")));
        }
        let fields = fields.iter().map(|(name, value)| Ok((name.clone(), Test::of(value, depth + 1, tests)?)));
        Ok(Self { fields: fields.collect::<Result<_>>()? })
    }

    /// Returns whether a value matches.
    pub fn matches(&self, value: &Value) -> bool {
        self.fields.iter().all(|(name, test)| test.holds(value.get(name)))
    }

    /// Returns whether the filter matches every value.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

impl Test {
    fn of(value: &Value, depth: usize, tests: &mut usize) -> Result<Self> {
        let Value::Object(fields) = value else {
            return Ok(Self::All(vec![Comparison { operator: Operator::Equal, operand: value.clone() }]));
        };
        let operators = fields.keys().filter(|name| name.starts_with('$')).count();
        match operators {
            0 if fields.is_empty() => Ok(Self::All(vec![Comparison { operator: Operator::Equal, operand: value.clone() }])),
            0 => JsonFilter::of_fields(fields, depth, tests).map(Self::Beneath),
            _ if operators < fields.len() => {
                Err(Error::invalid_argument("a filter mixes operators and fields in one object; put them into two"))
            }
            _ => {
                count(tests, fields.len())?;
                fields.iter().map(|(name, operand)| Comparison::of(name, operand)).collect::<Result<_>>().map(Self::All)
            }
        }
    }

    fn holds(&self, value: Option<&Value>) -> bool {
        match self {
            Self::All(comparisons) => comparisons.iter().all(|comparison| comparison.holds(value)),
            Self::Beneath(filter) => value.is_some_and(|value| value.is_object() && filter.matches(value)),
        }
    }
}

impl Comparison {
    fn of(name: &str, operand: &Value) -> Result<Self> {
        let operator = match name {
            "$eq" => Operator::Equal,
            "$ne" => Operator::NotEqual,
            "$gt" => Operator::Greater,
            "$gte" => Operator::GreaterOrEqual,
            "$lt" => Operator::Less,
            "$lte" => Operator::LessOrEqual,
            _ => return Err(Error::invalid_argument(format!("`{name}` is not an operator; use $eq, $ne, $gt, $gte, $lt or $lte"))),
        };
        let has_order = matches!(operand, Value::Number(_) | Value::String(_));
        if !has_order && !matches!(operator, Operator::Equal | Operator::NotEqual) {
            return Err(Error::invalid_argument(format!("`{name}` compares numbers or strings, not `{operand}`")));
        }
        Ok(Self { operator, operand: operand.clone() })
    }

    fn holds(&self, value: Option<&Value>) -> bool {
        let order = || value.and_then(|value| order(value, &self.operand));
        match self.operator {
            Operator::Equal => value.is_some_and(|value| equal(value, &self.operand)),
            Operator::NotEqual => !value.is_some_and(|value| equal(value, &self.operand)),
            Operator::Greater => order() == Some(Ordering::Greater),
            Operator::GreaterOrEqual => matches!(order(), Some(Ordering::Greater | Ordering::Equal)),
            Operator::Less => order() == Some(Ordering::Less),
            Operator::LessOrEqual => matches!(order(), Some(Ordering::Less | Ordering::Equal)),
        }
    }
}

/// Counts tests of a filter.
fn count(tests: &mut usize, more: usize) -> Result<()> {
    *tests += more;
    if *tests <= TESTS_MAX {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("the filter has over {TESTS_MAX} fields and comparisons; select by fewer")))
}

/// Orders two numbers or two strings; other values have no order.
fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => order_of_numbers(left, right),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// Compares integers exactly, and other numbers as floating point.
fn order_of_numbers(left: &Number, right: &Number) -> Option<Ordering> {
    match (left.as_i128(), right.as_i128()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
    }
}

fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => order_of_numbers(left, right) == Some(Ordering::Equal),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len() && left.iter().all(|(name, left)| right.get(name).is_some_and(|right| equal(left, right)))
        }
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(filter: Value, value: Value) -> bool {
        JsonFilter::parse(&filter).unwrap_or_else(|error| panic!("{filter}: {error}")).matches(&value)
    }

    #[test]
    fn fields_match_by_equality_operators_or_nested_fields() {
        let value = json!({"s": "b", "n": 5, "f": 0.5, "z": null, "t": true, "l": [1, {"a": 2}], "o": {"p": {"q": 1}, "r": 2}, "e": {}});
        for filter in [
            json!({}),
            json!({"s": "b", "n": 5}),
            json!({"n": 5.0}),
            json!({"n": {"$gt": 4, "$lte": 5}}),
            json!({"n": {"$gte": 4.5}}),
            json!({"f": {"$lt": 1}}),
            json!({"s": {"$gt": "a", "$lt": "c"}}),
            json!({"s": {"$ne": "a"}}),
            json!({"absent": {"$ne": 1}}),
            json!({"z": null}),
            json!({"z": {"$eq": null}}),
            json!({"l": [1, {"a": 2.0}]}),
            json!({"o": {"r": 2}}),
            json!({"o": {"p": {"q": {"$lt": 2}}}}),
            json!({"o": {"$eq": {"r": 2, "p": {"q": 1}}}}),
            json!({"e": {}}),
        ] {
            assert!(matches(filter.clone(), value.clone()), "{filter}");
        }
        for filter in [
            json!({"s": "a"}),
            json!({"s": "b", "n": 6}),
            json!({"absent": null}),
            json!({"absent": {"$gt": 0}}),
            json!({"s": {"$gt": 0}}),
            json!({"n": {"$gt": "4"}}),
            json!({"n": "5"}),
            json!({"t": 1}),
            json!({"n": {"$gt": 4, "$lt": 5}}),
            json!({"l": [1]}),
            json!({"o": {"r": 2, "x": 1}}),
            json!({"o": {"$eq": {"r": 2}}}),
            json!({"s": {"length": 1}}),
            json!({"o": {}}),
        ] {
            assert!(!matches(filter.clone(), value.clone()), "{filter}");
        }
        assert!(!matches(json!({"a": 1}), json!([1])));
    }

    #[test]
    fn large_integers_compare_exactly() {
        assert!(matches(json!({"n": {"$gt": 9_007_199_254_740_992_u64}}), json!({"n": 9_007_199_254_740_993_u64})));
        assert!(!matches(json!({"n": u64::MAX}), json!({"n": u64::MAX - 1})));
        assert!(matches(json!({"n": {"$lt": 0}}), json!({"n": i64::MIN})));
    }

    #[test]
    fn malformed_filter_is_refused_with_a_hint() {
        let mut deep = json!(1);
        for _ in 0..40 {
            deep = json!({ "a": deep });
        }
        for (filter, part) in [
            (json!([]), "must be an object"),
            (json!({"$gt": 1}), "in the place of a field name"),
            (json!({"n": {"$near": 1}}), "use $eq"),
            (json!({"n": {"$gt": 1, "m": 2}}), "mixes operators and fields"),
            (json!({"n": {"$gt": null}}), "compares numbers or strings"),
            (json!({"n": {"$lte": [1]}}), "compares numbers or strings"),
            (deep, "levels deep"),
            ((0..300).map(|number| (number.to_string(), json!({"$ne": 1}))).collect(), "over 256 fields"),
        ] {
            let error = JsonFilter::parse(&filter).expect_err("not a filter");
            assert!(error.message().contains(part), "{filter}: {error}");
        }
    }
}
