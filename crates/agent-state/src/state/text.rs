//! JSON texts that are edited in place: only what changed gets new text.
//!
//! A value is read into a typed form that knows some of its fields. To write a change back, [`patch`] compares the typed form before
//! and after it, both as JSON, and carries the difference over to the original text. So unknown fields, white space, the order of
//! fields and the spelling of numbers survive wherever nothing changed.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use treehold_core::error::{Error, Result};
use treehold_core::json::Json;

/// How new text is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum JsonForm {
    /// Without white space.
    #[default]
    Compact,
    /// In lines, as AgentScope writes its files: fields are indented by two spaces for each object around them, arrays stay on their line.
    Pretty,
}

impl JsonForm {
    /// Lays out a value. Strings and numbers keep their spelling. Cost: one pass over the text.
    ///
    /// ```
    /// use treehold_agent_state::{Json, JsonForm};
    ///
    /// let json = Json::parse(r#"{"a":[1,{"b":{}}]}"#)?;
    /// assert_eq!(JsonForm::Pretty.render(&json), "{\n  \"a\" : [ 1, {\n    \"b\" : { }\n  } ]\n}");
    /// assert_eq!(JsonForm::Compact.render(&Json::parse("{ \"a\" : [ 1 ] }")?), r#"{"a":[1]}"#);
    /// # Ok::<(), treehold_core::Error>(())
    /// ```
    pub fn render(self, json: &Json) -> String {
        self.at(json.as_str(), 0)
    }

    /// Lays out a value within `depth` objects. The text is valid JSON.
    pub(crate) fn at(self, text: &str, depth: usize) -> String {
        let mut out = String::with_capacity(text.len());
        // Of each open bracket, whether it is an object's and whether something follows it.
        let mut open: Vec<(bool, bool)> = Vec::new();
        let mut objects = depth;
        let mut rest = text;
        let line = |out: &mut String, objects: usize| {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", objects));
        };
        while let Some(first) = rest.as_bytes().first().copied() {
            let mut length = 1;
            match first {
                b' ' | b'\t' | b'\n' | b'\r' => {}
                b'{' | b'[' => {
                    self.before_value(&mut out, &mut open, objects);
                    out.push(char::from(first));
                    let object = first == b'{';
                    objects += usize::from(object);
                    open.push((object, false));
                }
                b'}' | b']' => {
                    let (object, filled) = open.pop().unwrap_or_default();
                    objects -= usize::from(object);
                    if self == Self::Pretty {
                        if object && filled { line(&mut out, objects) } else { out.push(' ') }
                    }
                    out.push(char::from(first));
                }
                b',' => {
                    out.push(',');
                    let object = open.last().is_some_and(|(object, _)| *object);
                    if self == Self::Pretty {
                        if object { line(&mut out, objects) } else { out.push(' ') }
                    }
                }
                b':' => out.push_str(if self == Self::Pretty { " : " } else { ":" }),
                _ => {
                    length = token_length(rest);
                    self.before_value(&mut out, &mut open, objects);
                    out.push_str(&rest[..length]);
                }
            }
            rest = &rest[length..];
        }
        out
    }

    /// Writes the white space between an opening bracket and what follows it.
    fn before_value(self, out: &mut String, open: &mut [(bool, bool)], objects: usize) {
        if let Some((object, filled)) = open.last_mut().filter(|(_, filled)| !*filled) {
            *filled = true;
            if self == Self::Pretty {
                if *object {
                    out.push('\n');
                    out.extend(std::iter::repeat_n("  ", objects));
                } else {
                    out.push(' ');
                }
            }
        }
    }
}

/// Returns the length of the string, number or word that a text starts with.
fn token_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    if bytes[0] != b'"' {
        return bytes.iter().position(|byte| b" \t\r\n,:]}".contains(byte)).unwrap_or(bytes.len());
    }
    let mut escaped = false;
    let end = bytes[1..].iter().position(|byte| match byte {
        _ if escaped => {
            escaped = false;
            false
        }
        b'\\' => {
            escaped = true;
            false
        }
        byte => *byte == b'"',
    });
    end.map_or(bytes.len(), |end| end + 2)
}

/// Returns how deep the arrays and objects of a valid JSON text nest.
pub(crate) fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Writes a text as a JSON string, as AgentScope does: only what must be escaped is, and hexadecimal digits are uppercase.
pub(crate) fn string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => out.push_str(&format!("\\u{:04X}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Writes a finite number as Java does: `25000.0`, `1.25E7`, `1.0E-5`.
pub(crate) fn double(number: f64) -> String {
    let size = number.abs();
    if size == 0.0 || (1e-3..1e7).contains(&size) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if digits.contains('.') => format!("{digits}E{exponent}"),
        Some((digits, exponent)) => format!("{digits}.0E{exponent}"),
        None => text,
    }
}

/// The strings of a compact JSON text, spelled by [`string`].
pub(crate) fn respell(text: String) -> String {
    // Only control characters are spelled in another way.
    if !text.contains("\\u") {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('"') {
        let length = token_length(&rest[at..]);
        let token = &rest[at..at + length];
        out.push_str(&rest[..at]);
        match serde_json::from_str::<String>(token) {
            // Texts that were given as JSON keep their spelling: only what serde wrote is spelled anew.
            Ok(value) if serde_json::to_string(&value).is_ok_and(|written| written == token) => out.push_str(&string(&value)),
            _ => out.push_str(token),
        }
        rest = &rest[at + length..];
    }
    out.push_str(rest);
    out
}

/// One field of an object, or one element of an array, whose `key` is empty.
#[derive(Debug, Clone)]
pub(crate) struct Part<'a> {
    /// The text between the end of the value before and the start of this one: the separator, the key and the white space.
    pub(crate) lead: Cow<'a, str>,
    pub(crate) key: Cow<'a, str>,
    pub(crate) value: Cow<'a, str>,
}

/// The parts of an object or array, with all text between them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts<'a> {
    pub(crate) parts: Vec<Part<'a>>,
    /// The text after the last value.
    pub(crate) tail: Cow<'a, str>,
}

impl<'a> Parts<'a> {
    /// Takes an object or array apart. The text is valid JSON without white space around it.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a text of another type.
    pub(crate) fn of(text: &'a str, object: bool) -> Result<Self> {
        let wrong = |error: serde_json::Error| Error::invalid_argument(format!("the JSON is not valid here: {error}"));
        let raw: Vec<(Cow<'a, str>, &'a RawValue)> = if object {
            serde_json::from_str::<RawObject<'a>>(text).map_err(wrong)?.0
        } else {
            let elements: Vec<&'a RawValue> = serde_json::from_str::<RawArray<'a>>(text).map_err(wrong)?.0;
            elements.into_iter().map(|value| (Cow::Borrowed(""), value)).collect()
        };
        let mut parts = Vec::with_capacity(raw.len());
        let mut end = 0;
        for (key, value) in raw {
            // The value is a part of the text, so its address says where.
            let from = (value.get().as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
            let lead = text.get(end..from).ok_or_else(|| Error::invalid_argument("the JSON cannot be taken apart"))?;
            end = from + value.get().len();
            parts.push(Part { lead: lead.into(), key, value: value.get().into() });
        }
        Ok(Self { parts, tail: text.get(end..).unwrap_or_default().into() })
    }

    /// Returns where the field is. The last one counts if it occurs several times.
    pub(crate) fn position(&self, key: &str) -> Option<usize> {
        self.parts.iter().rposition(|part| part.key == key)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.position(key).map(|at| &*self.parts[at].value)
    }

    /// Removes a field.
    fn remove(&mut self, at: usize) {
        let removed = self.parts.remove(at);
        if self.parts.is_empty() {
            self.tail = if removed.lead.contains('\n') { "{ }" } else { "{}" }.into();
        } else if at == 0 {
            let first = &mut self.parts[0].lead;
            let after_comma = first.find(',').map_or(0, |comma| comma + 1);
            *first = format!("{{{}", &first[after_comma..]).into();
        }
    }

    /// Inserts a field before the one at `at`, or at the end. New text is laid out as its neighbour, or in `form` if there is none.
    pub(crate) fn insert(&mut self, at: usize, key: &str, value: String, form: JsonForm, depth: usize) {
        let spelled = string(key);
        let (space, colon) = match self.parts.first() {
            Some(neighbour) => neighbour.space_and_colon(),
            None => match form {
                JsonForm::Compact => (String::new(), ":".to_owned()),
                JsonForm::Pretty => (format!("\n{}", "  ".repeat(depth)), " : ".to_owned()),
            },
        };
        let separator = if at == 0 { '{' } else { ',' };
        let lead = format!("{separator}{space}{spelled}{colon}");
        if self.parts.is_empty() {
            self.tail = match form {
                JsonForm::Compact => "}".into(),
                JsonForm::Pretty => format!("\n{}}}", "  ".repeat(depth.saturating_sub(1))).into(),
            };
        } else if at == 0 {
            let first = &mut self.parts[0].lead;
            *first = format!(",{}", first.trim_start_matches('{')).into();
        }
        self.parts.insert(at, Part { lead: lead.into(), key: key.to_owned().into(), value: value.into() });
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> String {
        let length = self.parts.iter().map(|part| part.lead.len() + part.value.len()).sum::<usize>() + self.tail.len();
        let mut text = String::with_capacity(length);
        for part in &self.parts {
            text.push_str(&part.lead);
            text.push_str(&part.value);
        }
        text.push_str(&self.tail);
        text
    }

    pub(crate) fn into_owned(self) -> Parts<'static> {
        let own = |text: Cow<'_, str>| Cow::<'static, str>::Owned(text.into_owned());
        let parts = self.parts.into_iter().map(|part| Part { lead: own(part.lead), key: own(part.key), value: own(part.value) }).collect();
        Parts { parts, tail: own(self.tail) }
    }
}

impl Part<'_> {
    /// Returns the white space before the key, and the colon with the white space around it.
    fn space_and_colon(&self) -> (String, String) {
        let from_key = self.lead.find('"').unwrap_or(0);
        let before = &self.lead[..from_key];
        let space = before.find([',', '{']).map_or("", |separator| &before[separator + 1..]);
        let colon = self.lead.rfind('"').map_or(":", |quote| &self.lead[quote + 1..]);
        (space.to_owned(), colon.to_owned())
    }
}

/// How the elements of an array are separated.
#[derive(Debug, Clone)]
pub(crate) struct Separators {
    open: String,
    /// One text for all gaps, or one for each.
    between: Vec<String>,
    close: String,
    empty: String,
}

impl Separators {
    pub(crate) fn new(form: JsonForm) -> Self {
        let (open, between, close, empty) = match form {
            JsonForm::Compact => ("[", ",", "]", "[]"),
            JsonForm::Pretty => ("[ ", ", ", " ]", "[ ]"),
        };
        Self { open: open.into(), between: vec![between.into()], close: close.into(), empty: empty.into() }
    }

    /// Reads the separators of an array.
    pub(crate) fn of(array: &Parts<'_>, form: JsonForm) -> Self {
        let mut separators = Self::new(form);
        match array.parts.split_first() {
            None => separators.empty = array.tail.clone().into_owned(),
            Some((first, others)) => {
                separators.open = first.lead.clone().into_owned();
                separators.close = array.tail.clone().into_owned();
                if let Some((second, rest)) = others.split_first() {
                    separators.between = vec![second.lead.clone().into_owned()];
                    if rest.iter().any(|part| part.lead != second.lead) {
                        separators.between.extend(rest.iter().map(|part| part.lead.clone().into_owned()));
                    }
                }
            }
        }
        separators
    }

    /// Writes an array.
    pub(crate) fn write<T: AsRef<str>>(&self, elements: impl IntoIterator<Item = T>, out: &mut String) {
        let mut count = 0_usize;
        for element in elements {
            out.push_str(match count {
                0 => &self.open,
                _ => self.between.get(count - 1).or(self.between.last()).map_or(",", String::as_str),
            });
            out.push_str(element.as_ref());
            count += 1;
        }
        out.push_str(if count == 0 { &self.empty } else { &self.close });
    }
}

/// Carries the difference between `base` and `new` over to `text`.
///
/// All three are valid JSON. `base` and `new` are what the typed form wrote: of `text`, and after the change. `depth` counts the objects
/// around the value.
pub(crate) fn patch(text: &str, base: &str, new: &str, form: JsonForm, depth: usize) -> String {
    if base == new {
        return text.to_owned();
    }
    let starts = |first: u8| [text, base, new].iter().all(|text| text.as_bytes().first() == Some(&first));
    let patched = if starts(b'{') {
        patch_object(text, base, new, form, depth)
    } else if starts(b'[') {
        patch_array(text, base, new, form, depth)
    } else {
        None
    };
    patched.unwrap_or_else(|| form.at(new, depth))
}

fn patch_object(text: &str, base: &str, new: &str, form: JsonForm, depth: usize) -> Option<String> {
    let mut parts = Parts::of(text, true).ok()?;
    patch_parts(&mut parts, base, new, form, depth).ok()?;
    Some(parts.text())
}

/// Carries the difference between the objects `base` and `new` over to an object. Cost: one pass over each.
pub(crate) fn patch_parts(parts: &mut Parts<'_>, base: &str, new: &str, form: JsonForm, depth: usize) -> Result<()> {
    let (base, new) = (Parts::of(base, true)?, Parts::of(new, true)?);
    let index = |parts: &Parts<'_>| -> HashMap<String, usize> {
        parts.parts.iter().enumerate().map(|(at, part)| (part.key.clone().into_owned(), at)).collect()
    };
    let (places, old_values, new_values) = (index(parts), index(&base), index(&new));
    // The fields to insert, each before the field that has this place now.
    let (mut insertions, mut next) = (Vec::new(), 0);
    for part in &new.parts {
        let at = places.get(&*part.key).copied();
        let old = old_values.get(&*part.key).map(|at| &*base.parts[*at].value);
        match (at, old) {
            (Some(at), Some(old)) if old == part.value => next = at + 1,
            (Some(at), old) => {
                let value = &parts.parts[at].value;
                let value = old.map_or_else(|| form.at(&part.value, depth + 1), |old| patch(value, old, &part.value, form, depth + 1));
                parts.parts[at].value = value.into();
                next = at + 1;
            }
            // A default that the text does not spell out.
            (None, Some(old)) if old == part.value => {}
            (None, _) => insertions.push((next, part)),
        }
    }
    insertions.sort_by_key(|(before, _)| *before);
    let gone = |key: &str| old_values.contains_key(key) && !new_values.contains_key(key);
    for at in (0..=parts.parts.len()).rev() {
        while insertions.last().is_some_and(|(before, _)| *before == at) {
            if let Some((_, part)) = insertions.pop() {
                parts.insert(at, &part.key, form.at(&part.value, depth + 1), form, depth + 1);
            }
        }
        if at > 0 && gone(&parts.parts[at - 1].key) {
            parts.remove(at - 1);
        }
    }
    Ok(())
}

fn patch_array(text: &str, base: &str, new: &str, form: JsonForm, depth: usize) -> Option<String> {
    let mut parts = Parts::of(text, false).ok()?;
    let (base, new) = (Parts::of(base, false).ok()?, Parts::of(new, false).ok()?);
    let separators = Separators::of(&parts, form);
    if parts.parts.len() != base.parts.len() {
        // Readers skip `null` elements.
        parts.parts.retain(|part| part.value != "null");
        if parts.parts.len() != base.parts.len() {
            return None;
        }
    }
    let mut matches = Matches::of(&base);
    let same_length = base.parts.len() == new.parts.len();
    let mut sources = vec![None; new.parts.len()];
    let equal = |old: usize, at: usize| base.parts[old].value == new.parts[at].value;
    // Elements that look alike may differ in unknown fields, so those at the same place come first.
    let shortest = base.parts.len().min(new.parts.len());
    let prefix = (0..shortest).take_while(|at| equal(*at, *at)).count();
    let (last_old, last_new) = (base.parts.len(), new.parts.len());
    let suffix = (1..=shortest - prefix).take_while(|back| equal(last_old - back, last_new - back)).count();
    let ends = (0..prefix).map(|at| (at, at)).chain((1..=suffix).map(|back| (last_old - back, last_new - back)));
    let between = if same_length { prefix..last_new - suffix } else { 0..0 };
    for (old, at) in ends.chain(between.filter(|at| equal(*at, *at)).map(|at| (at, at))) {
        matches.used[old] = true;
        sources[at] = Some(old);
    }
    for (source, part) in sources.iter_mut().zip(&new.parts).filter(|(source, _)| source.is_none()) {
        *source = matches.equal(&part.value);
    }
    let mut elements = Vec::with_capacity(new.parts.len());
    for (at, (source, part)) in sources.into_iter().zip(&new.parts).enumerate() {
        let source = source.or_else(|| matches.same(&part.value, same_length.then_some(at)));
        elements.push(match source {
            Some(old) => patch(&parts.parts[old].value, &base.parts[old].value, &part.value, form, depth),
            None => form.at(&part.value, depth),
        });
    }
    let mut out = String::new();
    separators.write(elements, &mut out);
    Some(out)
}

/// The `type` and the `id` of an element.
type Identity = (String, String);

/// The elements of an array that new elements may come from. Each is used once.
struct Matches {
    by_text: HashMap<String, VecDeque<usize>>,
    by_identity: HashMap<Identity, usize>,
    /// The identity and the kind of each.
    identities: Vec<(Option<Identity>, Option<String>)>,
    used: Vec<bool>,
}

impl Matches {
    fn of(base: &Parts<'_>) -> Self {
        let mut by_text: HashMap<String, VecDeque<usize>> = HashMap::new();
        let (mut by_identity, mut identities) = (HashMap::new(), Vec::with_capacity(base.parts.len()));
        for (at, part) in base.parts.iter().enumerate() {
            by_text.entry(part.value.clone().into_owned()).or_default().push_back(at);
            let (identity, kind) = identity(&part.value);
            if let Some(identity) = &identity {
                by_identity.entry(identity.clone()).or_insert(at);
            }
            identities.push((identity, kind));
        }
        Self { by_text, by_identity, identities, used: vec![false; base.parts.len()] }
    }

    /// Finds an element with the same text.
    fn equal(&mut self, text: &str) -> Option<usize> {
        let places = self.by_text.get_mut(text)?;
        while let Some(at) = places.pop_front() {
            if !std::mem::replace(&mut self.used[at], true) {
                return Some(at);
            }
        }
        None
    }

    /// Finds an element with the same `id` and `type`, or at the same place one of the same `type` without an `id`.
    fn same(&mut self, text: &str, place: Option<usize>) -> Option<usize> {
        let (identity, kind) = identity(text);
        let here = place.filter(|_| kind.is_some() || identity.is_some()).filter(|at| self.identities[*at] == (identity.clone(), kind));
        let at = here.or_else(|| self.by_identity.get(&identity?).copied()).filter(|at| !self.used[*at])?;
        self.used[at] = true;
        Some(at)
    }
}

/// Returns the `type` and `id` of an object if it has an `id`, and the `type` alone.
fn identity(text: &str) -> (Option<Identity>, Option<String>) {
    let Some(parts) = text.starts_with('{').then(|| Parts::of(text, true).ok()).flatten() else { return (None, None) };
    let texts = |key: &str| parts.get(key).filter(|value| value.starts_with('"')).map(str::to_owned);
    let kind = texts("type");
    (texts("id").map(|id| (kind.clone().unwrap_or_default(), id)), kind)
}

struct RawObject<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(transparent)]
        struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((key, value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    fields.push((key.0, value));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Fields).map(Self)
    }
}

struct RawArray<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for RawArray<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;
        impl<'de> Visitor<'de> for Elements {
            type Value = Vec<&'de RawValue>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = sequence.next_element()? {
                    elements.push(element);
                }
                Ok(elements)
            }
        }
        deserializer.deserialize_seq(Elements).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_spelled_as_in_java() {
        let table = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (1e6, "1000000.0"),
            (9_999_999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (1.25e7, "1.25E7"),
            (123_456_789.125, "1.23456789125E8"),
            (1e-3, "0.001"),
            (9.99e-4, "9.99E-4"),
            (1e-5, "1.0E-5"),
            (1e22, "1.0E22"),
            (f64::MAX, "1.7976931348623157E308"),
            (1.0 / 3.0, "0.3333333333333333"),
        ];
        for (number, text) in table {
            assert_eq!(double(number), text);
        }
    }

    #[test]
    fn patch_touches_only_what_changed() {
        let text = "{ \"b\": 1.0,\t\"new\" : [ ] ,\"a\" :{\"x\":null, \"keep\":1e2} }";
        let cases = [
            // Equal forms keep the text, whatever it says.
            (r#"{"a":1}"#, r#"{"a":1}"#, text.to_owned()),
            (r#"{"b":1}"#, r#"{"b":2}"#, text.replace("1.0", "2")),
            (r#"{"a":{"x":[]}}"#, r#"{"a":{"x":["y"]}}"#, text.replace("null", r#"["y"]"#)),
            (r#"{"b":1}"#, "{}", text.replace("{ \"b\": 1.0,\t\"new\"", "{\t\"new\"")),
            (r#"{"b":1,"c":0}"#, r#"{"b":1,"c":5}"#, text.replace("1.0,", "1.0, \"c\": 5,")),
            (r#"{"b":1,"c":0}"#, r#"{"b":1,"c":0}"#, text.to_owned()),
            (r#"{"d":0}"#, r#"{"d":5}"#, text.replace("{ \"b\"", "{ \"d\": 5, \"b\"")),
        ];
        for (base, new, expected) in cases {
            assert_eq!(patch(text, base, new, JsonForm::Compact, 0), expected, "{base} {new}");
        }
        assert_eq!(patch("{ }", "{}", r#"{"a":{"b":[1]}}"#, JsonForm::Pretty, 0), "{\n  \"a\" : {\n    \"b\" : [ 1 ]\n  }\n}");
        assert_eq!(patch(r#"{"a":1}"#, r#"{"a":1}"#, "{}", JsonForm::Compact, 0), "{}");
        assert_eq!(patch("{\n  \"a\" : 1\n}", r#"{"a":1}"#, "{}", JsonForm::Pretty, 0), "{ }");
        // New fields keep their order, in front, between and behind, while others go.
        let (text, base) = (r#"{"b":1,"x":9,"d":2}"#, r#"{"b":1,"d":2}"#);
        for (new, expected) in [
            (r#"{"a":0,"b":1,"c1":0,"c2":0,"d":2,"e":0}"#, r#"{"a":0,"b":1,"c1":0,"c2":0,"x":9,"d":2,"e":0}"#),
            (r#"{"a":0,"c":0}"#, r#"{"a":0,"c":0,"x":9}"#),
            (r#"{"c":0,"d":2}"#, r#"{"c":0,"x":9,"d":2}"#),
            (r#"{"b":1,"e":0}"#, r#"{"b":1,"e":0,"x":9}"#),
            ("{}", r#"{"x":9}"#),
        ] {
            assert_eq!(patch(text, base, new, JsonForm::Compact, 0), expected, "{new}");
        }
        assert_eq!(patch(r#"{"b":1,"d":2}"#, base, r#"{"e":0}"#, JsonForm::Compact, 0), r#"{"e":0}"#);
    }

    #[test]
    fn elements_keep_their_text_when_others_come_and_go() {
        let text = r#"[ {"id":"a","n":1,"x":9} ,{"id":"b","n":2,"y":8}]"#;
        let base = r#"[{"id":"a","n":1},{"id":"b","n":2}]"#;
        let cases = [
            (r#"[{"id":"b","n":2}]"#, r#"[ {"id":"b","n":2,"y":8}]"#),
            (r#"[{"id":"b","n":3},{"id":"a","n":1}]"#, r#"[ {"id":"b","n":3,"y":8} ,{"id":"a","n":1,"x":9}]"#),
            (
                r#"[{"id":"a","n":1},{"id":"c","n":1},{"id":"b","n":2}]"#,
                r#"[ {"id":"a","n":1,"x":9} ,{"id":"c","n":1} ,{"id":"b","n":2,"y":8}]"#,
            ),
            ("[]", "[]"),
        ];
        for (new, expected) in cases {
            assert_eq!(patch(text, base, new, JsonForm::Compact, 0), expected, "{new}");
        }
        // An element that replaces one without an `id` does not inherit its unknown fields.
        assert_eq!(patch(r#"[{"n":1,"x":9}]"#, r#"[{"n":1}]"#, r#"[{"n":2}]"#, JsonForm::Compact, 0), r#"[{"n":2}]"#);
        assert_eq!(
            patch(r#"[null,{"type":"t","n":1,"x":9}]"#, r#"[{"type":"t","n":1}]"#, r#"[{"type":"t","n":2}]"#, JsonForm::Compact, 0),
            r#"[{"type":"t","n":2,"x":9}]"#
        );
    }

    #[test]
    fn strings_are_spelled_with_uppercase_digits_and_given_spellings_stay() {
        assert_eq!(string("a\"\\\n\u{1}\u{1f}\u{7f}é😀"), "\"a\\\"\\\\\\n\\u0001\\u001F\u{7f}é😀\"");
        assert_eq!(respell(serde_json::to_string(&["\u{1f}", "x"]).expect("plain")), r#"["\u001F","x"]"#);
        assert_eq!(respell(r#"{"\u00e9":"\u001f\u00e9"}"#.to_owned()), r#"{"\u00e9":"\u001f\u00e9"}"#);
    }
}
