//! Where an object is due in a request body, according to the description of its route.
//!
//! serde also reads a struct from an array of its fields in order. Such a body would mean something else as soon as a field is added, so
//! all routes refuse it here, at every depth.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use treehold_core::error::{Error, Result};

/// The places of a body where an object is due.
#[derive(Debug)]
pub(super) struct Objects {
    /// The first one is the body.
    places: Vec<Place>,
}

/// A value in a body, and where its parts are described.
#[derive(Debug, Default)]
struct Place {
    /// Whether the value may be an object, and must not be an array.
    is_object: bool,
    members: BTreeMap<String, usize>,
    /// The members that are not named.
    others: Option<usize>,
    elements: Option<usize>,
}

impl Place {
    fn parts(&self) -> impl Iterator<Item = usize> {
        self.members.values().copied().chain(self.others).chain(self.elements)
    }
}

impl Objects {
    /// Finds the places in a schema; `None` if there are none.
    pub(super) fn of(schema: fn(&mut SchemaGenerator) -> Schema) -> Option<Self> {
        let mut generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
        let schema = schema(&mut generator).to_value();
        let definitions = generator.take_definitions(true);
        let mut reading = Reading { definitions: &definitions, places: Vec::new(), known: HashMap::new() };
        reading.place(vec![&schema]);
        Self { places: reading.places }.pruned()
    }

    /// Removes the ways to places beneath which no object is due, so that a check need not go there.
    fn pruned(mut self) -> Option<Self> {
        let mut matters: Vec<bool> = self.places.iter().map(|place| place.is_object).collect();
        loop {
            let more: Vec<bool> =
                self.places.iter().enumerate().map(|(at, place)| matters[at] || place.parts().any(|part| matters[part])).collect();
            if more == matters {
                break;
            }
            matters = more;
        }
        for place in &mut self.places {
            place.others = place.others.filter(|part| matters[*part]);
            // A name that stays tells its member from the others.
            place.members.retain(|_, part| matters[*part] || place.others.is_some());
            place.elements = place.elements.filter(|part| matters[*part]);
        }
        matters[0].then_some(self)
    }

    /// Refuses a body with an array where an object is due. What is no JSON is left to the one who reads it.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument), with the place.
    pub(super) fn check(&self, body: &[u8]) -> Result<()> {
        let found = Found::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        let _ = Look { objects: self, place: Some(0), found: &found }.deserialize(&mut json);
        let Some(place) = found.array.into_inner() else { return Ok(()) };
        let what = if place.is_empty() { "the body".to_owned() } else { format!("`{}` in the body", place.escape_debug()) };
        let message = format!("{what} is an array, and an object is due; name its fields, as in `GET /openapi.json`");
        Err(Error::invalid_argument(message))
    }
}

/// Reads the places of a schema.
struct Reading<'a> {
    definitions: &'a Map<String, Value>,
    places: Vec<Place>,
    /// The place of each set of schemas, so that types that contain themselves end.
    known: HashMap<Vec<*const Value>, usize>,
}

/// A schema that a value may have.
#[derive(Clone, Copy)]
struct Choice<'a> {
    schema: &'a Value,
    /// Whether a schema around it allows objects only.
    is_within_object: bool,
}

impl Choice<'_> {
    fn kinds(&self) -> Vec<&str> {
        match &self.schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ if self.is_within_object => vec!["object"],
            _ => Vec::new(),
        }
    }
}

impl<'a> Reading<'a> {
    /// Returns the place of a value that has one of several schemas.
    fn place(&mut self, schemas: Vec<&'a Value>) -> usize {
        let mut choices = Vec::new();
        for schema in schemas {
            self.add_choices(Choice { schema, is_within_object: false }, &mut choices);
        }
        let mut key: Vec<*const Value> = choices.iter().map(|choice| std::ptr::from_ref(choice.schema)).collect();
        key.sort_unstable();
        key.dedup();
        if let Some(&place) = self.known.get(&key) {
            return place;
        }
        let at = self.places.len();
        self.places.push(Place::default());
        self.known.insert(key, at);
        let kinds: Vec<Vec<&str>> = choices.iter().map(Choice::kinds).collect();
        let is_any = kinds.iter().any(|kinds| kinds.is_empty() || kinds.contains(&"array"));
        let is_object = !is_any && kinds.iter().any(|kinds| kinds.contains(&"object"));
        let mut named: BTreeMap<&'a str, Vec<&'a Value>> = BTreeMap::new();
        for (name, schema) in choices.iter().filter_map(|choice| choice.schema["properties"].as_object()).flatten() {
            named.entry(name).or_default().push(schema);
        }
        let members = named.into_iter().map(|(name, schemas)| (name.to_owned(), self.place(schemas))).collect();
        let parts = |name: &str| -> Vec<&'a Value> {
            choices.iter().map(|choice| &choice.schema[name]).filter(|schema| schema.is_object()).collect()
        };
        let others = Some(parts("additionalProperties")).filter(|schemas| !schemas.is_empty()).map(|schemas| self.place(schemas));
        let elements = Some(parts("items")).filter(|schemas| !schemas.is_empty()).map(|schemas| self.place(schemas));
        self.places[at] = Place { is_object, members, others, elements };
        at
    }

    /// Adds the schemas behind references and choices.
    fn add_choices(&self, choice: Choice<'a>, choices: &mut Vec<Choice<'a>>) {
        if choices.iter().any(|known| std::ptr::eq(known.schema, choice.schema)) {
            return;
        }
        if let Some(name) = choice.schema["$ref"].as_str() {
            let name = name.rsplit('/').next().unwrap_or_default();
            if let Some(schema) = self.definitions.get(name) {
                self.add_choices(Choice { schema, ..choice }, choices);
            }
            return;
        }
        let within: Vec<&'a Value> =
            ["oneOf", "anyOf", "allOf"].iter().filter_map(|name| choice.schema[*name].as_array()).flatten().collect();
        let is_within_object = choice.is_within_object || choice.schema["type"] == "object";
        if within.is_empty() || is_within_object {
            choices.push(choice);
        }
        for schema in within {
            self.add_choices(Choice { schema, is_within_object }, choices);
        }
    }
}

/// Where a look into a body is, and the array that it found.
#[derive(Default)]
struct Found {
    way: RefCell<Vec<String>>,
    array: RefCell<Option<String>>,
}

/// A look at one value of a body. Outside of known places it reads over the value.
#[derive(Clone, Copy)]
struct Look<'a> {
    objects: &'a Objects,
    place: Option<usize>,
    found: &'a Found,
}

impl<'a> Look<'a> {
    fn at(&self) -> Option<&'a Place> {
        self.place.map(|place| &self.objects.places[place])
    }

    fn part(self, place: Option<usize>) -> Self {
        Self { place, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        match self.place {
            Some(_) => deserializer.deserialize_any(self),
            None => deserializer.deserialize_ignored_any(IgnoredAny).map(drop),
        }
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> std::result::Result<(), A::Error> {
        let place = self.at();
        if place.is_some_and(|place| place.is_object) {
            *self.found.array.borrow_mut() = Some(self.found.way.borrow().concat());
            return Err(A::Error::custom("an object is due"));
        }
        let look = self.part(place.and_then(|place| place.elements));
        for index in 0_usize.. {
            self.found.way.borrow_mut().push(format!("[{index}]"));
            let next = elements.next_element_seed(look)?;
            self.found.way.borrow_mut().pop();
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<(), A::Error> {
        let place = self.at();
        while let Some(name) = members.next_key::<String>()? {
            let part = place.and_then(|place| place.members.get(&name).copied().or(place.others));
            let dot = if self.found.way.borrow().is_empty() { "" } else { "." };
            self.found.way.borrow_mut().push(format!("{dot}{name}"));
            members.next_value_seed(self.part(part))?;
            self.found.way.borrow_mut().pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::JsonSchema;

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only the schema is used")]
    struct Tree {
        name: String,
        pair: (u8, u8),
        any: Value,
        children: Vec<Tree>,
        by_name: BTreeMap<String, Tree>,
        /// May be a text or an object.
        either: Option<Either>,
        choice: Option<Choice>,
    }

    #[derive(JsonSchema)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "only the schema is used")]
    enum Either {
        Text(String),
        Leaf(Leaf),
    }

    #[derive(JsonSchema)]
    #[serde(tag = "kind")]
    #[allow(dead_code, reason = "only the schema is used")]
    enum Choice {
        Leaf { leaf: Leaf },
        Leaves { leaves: Vec<Leaf> },
    }

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only the schema is used")]
    struct Leaf {
        size: u64,
    }

    fn objects<T: JsonSchema>() -> Option<Objects> {
        Objects::of(|generator| generator.subschema_for::<T>())
    }

    /// Returns the place that is refused.
    fn refused(objects: &Objects, body: &str) -> Option<String> {
        let message = objects.check(body.as_bytes()).err()?.message().to_owned();
        let place = message.strip_prefix('`').map_or("", |rest| rest.split('`').next().unwrap_or_default());
        Some(place.to_owned())
    }

    #[test]
    fn array_is_refused_at_every_depth_and_only_where_an_object_is_due() {
        let tree = objects::<Tree>().expect("objects are due");
        for (body, place) in [
            ("[]", Some("")),
            (" [1]", Some("")),
            (r#"{"children": [{}, []]}"#, Some("children[1]")),
            (r#"{"children": [{"children": [{"by_name": {"a": []}}]}]}"#, Some("children[0].children[0].by_name.a")),
            (r#"{"by_name": []}"#, Some("by_name")),
            (r#"{"choice": []}"#, Some("choice")),
            (r#"{"choice": {"kind": "Leaf", "leaf": [1]}}"#, Some("choice.leaf")),
            (r#"{"choice": {"leaves": [[1]], "kind": "Leaves"}}"#, Some("choice.leaves[0]")),
            (r#"{"any": [], "children": {}, "name": [], "pair": [1, 2], "unknown": [[]]}"#, None),
            (r#"{"either": [1]}"#, Some("either")),
            (r#"{"choice": null, "either": {"size": []}, "children": [7, "x", null, true, -1, 1.5]}"#, None),
            ("null", None),
            ("", None),
            (r#"{"children": [}"#, None),
            (r#"{"children": "x", "choice"#, None),
        ] {
            assert_eq!(refused(&tree, body).as_deref(), place, "{body}");
        }
    }

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only the schema is used")]
    struct Open {
        list: Vec<u8>,
        #[serde(flatten)]
        others: BTreeMap<String, Leaf>,
    }

    #[test]
    fn named_member_is_not_one_of_the_others() {
        let open = objects::<Open>().expect("objects are due");
        assert_eq!(refused(&open, r#"{"list": [1], "a": {"size": 1}}"#), None);
        assert_eq!(refused(&open, r#"{"list": [1], "a": [1]}"#).as_deref(), Some("a"));
    }

    #[test]
    fn body_without_objects_is_not_looked_into() {
        assert!(objects::<Vec<String>>().is_none() && objects::<Value>().is_none() && objects::<treehold_agent_state::Json>().is_none());
        assert!(objects::<Vec<Leaf>>().is_some() && objects::<Map<String, Value>>().is_some());
    }
}
