//! Changes a file of the original without touching what stayed the same.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use treehold_core::error::Result;
use treehold_core::json::Json;

/// The most fields of an object, and elements of an array, that are compared one by one.
pub(super) const FIELDS_MAX: usize = 1_000;

/// How far two numbers may be apart, relative to the greater one, to be the same number that was read and written a few times.
const NOISE: f64 = 1e-14;

/// An object's fields in the order of its text.
pub(super) struct Fields(pub(super) Vec<(String, Json)>);

impl Fields {
    /// Returns the value of a field: the last one with the name, as Python reads it.
    pub(super) fn get(&self, name: &str) -> Option<&Json> {
        self.0.iter().rfind(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// Returns the text of an object. Of several fields with one name, only the last one is in it.
    pub(super) fn to_json(&self) -> Result<Json> {
        let last: HashMap<&str, usize> = self.0.iter().enumerate().map(|(index, (name, _))| (name.as_str(), index)).collect();
        let mut text = String::from("{");
        for (index, (name, value)) in self.0.iter().enumerate() {
            if last.get(name.as_str()) != Some(&index) {
                continue;
            }
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&serde_json::to_string(name).expect("a text is JSON"));
            text.push(':');
            text.push_str(value.as_str());
        }
        text.push('}');
        Json::parse(&text)
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// An array's elements as texts.
struct Elements(Vec<Json>);

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Elements;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Elements, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = seq.next_element()? {
                    elements.push(element);
                }
                Ok(Elements(elements))
            }
        }

        deserializer.deserialize_seq(Reader)
    }
}

/// Returns whether two values are equal. The order of fields and the notation of numbers do not matter.
pub(super) fn is_same(one: &Json, other: &Json) -> bool {
    one == other || matches!((one.view::<Value>(), other.view::<Value>()), (Ok(one), Ok(other)) if are_same(&one, &other))
}

fn are_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other
                || matches!((one.as_f64(), other.as_f64()), (Some(one), Some(other))
                    if one == other || (one - other).abs() <= NOISE * one.abs().max(other.abs()))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| are_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len() && one.iter().all(|(name, value)| other.get(name).is_some_and(|other| are_same(value, other)))
        }
        _ => one == other,
    }
}

/// Returns `original` with what differs between `base`, its value when it was imported, and `now`. Fields and elements that did not change
/// keep their text and their order, and unknown ones stay. New fields come last.
pub(super) fn merged(original: &Json, base: &Json, now: &Json) -> Result<Json> {
    if is_same(base, now) {
        return Ok(original.clone());
    }
    if let (Ok(original), Ok(base), Ok(now)) = (original.view::<Fields>(), base.view::<Fields>(), now.view::<Fields>())
        && original.0.len().max(now.0.len()) <= FIELDS_MAX
    {
        return merged_fields(&original, &base, &now);
    }
    if let (Ok(original), Ok(base), Ok(now)) = (original.view::<Elements>(), base.view::<Elements>(), now.view::<Elements>())
        && original.0.len().max(now.0.len()) <= FIELDS_MAX
    {
        return merged_elements(&original.0, &base.0, &now.0);
    }
    Ok(now.clone())
}

fn merged_fields(original: &Fields, base: &Fields, now: &Fields) -> Result<Json> {
    let mut fields = Vec::new();
    for (name, value) in &original.0 {
        let value = match (base.get(name), now.get(name)) {
            (Some(base), Some(now)) => merged(value, base, now)?,
            (None, Some(now)) => now.clone(),
            // The import did not take it, or it is written only if it has a value.
            (_, None) => value.clone(),
        };
        fields.push((name.clone(), value));
    }
    for (name, value) in &now.0 {
        let is_old = base.get(name).map_or(value.as_str() == "null", |base| is_same(base, value));
        if original.get(name).is_none() && !is_old {
            fields.push((name.clone(), value.clone()));
        }
    }
    Fields(fields).to_json()
}

/// Merges the elements with equal ids.
fn merged_elements(original: &[Json], base: &[Json], now: &[Json]) -> Result<Json> {
    let mut text = String::from("[");
    for element in now {
        let id = id_of(element);
        let find = |among: &[Json]| among.iter().find(|other| id.is_some() && id_of(other) == id).cloned();
        let element = match (find(original), find(base)) {
            (Some(original), Some(base)) => merged(&original, &base, element)?,
            _ => element.clone(),
        };
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(element.as_str());
    }
    text.push(']');
    Json::parse(&text)
}

fn id_of(element: &Json) -> Option<String> {
    element.view::<Fields>().ok()?.get("id")?.view().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text).expect("valid JSON")
    }

    #[test]
    fn unchanged_values_keep_their_text() {
        let original = json(r#"{"z":1e2, "a": {"y": 1,"x":2}}"#);
        let base = json(r#"{"a":{"x":2,"y":1},"z":100,"default":0}"#);
        assert_eq!(merged(&original, &base, &base).expect("merged"), original);
    }

    #[test]
    fn changed_fields_stay_in_place_and_new_ones_come_last() {
        let original = json(r#"{"z": 1, "status": "running", "odd": {"b": 1, "a": 2}, "cost": 0.10, "gone": null}"#);
        let base = json(r#"{"status":"running","cost":0.1,"odd":{"a":2,"b":1},"z":1,"head":0}"#);
        let now = json(r#"{"status":"completed","cost":0.1,"odd":{"a":2,"b":1},"z":1,"head":3,"none":null}"#);
        let expected = r#"{"z":1,"status":"completed","odd":{"b": 1, "a": 2},"cost":0.10,"gone":null,"head":3}"#;
        assert_eq!(merged(&original, &base, &now).expect("merged").as_str(), expected);
    }

    #[test]
    fn elements_are_merged_by_id() {
        let original = json(r#"{"goals": [{"id": "1", "odd": 1, "status": "pending"}, {"id": "2"}]}"#);
        let base = json(r#"{"goals":[{"id":"1","status":"pending","odd":1},{"id":"2","status":"pending"}]}"#);
        let now =
            json(r#"{"goals":[{"id":"1","status":"completed","odd":1},{"id":"2","status":"pending"},{"id":"3","status":"pending"}]}"#);
        let expected = r#"{"goals":[{"id":"1","odd":1,"status":"completed"},{"id": "2"},{"id":"3","status":"pending"}]}"#;
        assert_eq!(merged(&original, &base, &now).expect("merged").as_str(), expected);
    }

    #[test]
    fn numbers_are_the_same_in_any_notation_and_within_noise() {
        assert!(is_same(&json("[1.0, 0.30000000000000004]"), &json("[1, 0.3]")));
        assert!(!is_same(&json("0.3"), &json("0.3000001")));
        assert!(!is_same(&json("1"), &json("\"1\"")));
    }
}
