//! Tells whether a value is long as JSON, without writing it.
//!
//! Writing looks at each byte of a string before the first of them reaches the writer, so a writer that refuses long output learns of a
//! long string too late. This looks at lengths alone.

use super::IN_PLACE_BYTES;
use serde::ser::{self, Serialize, Serializer};
use std::fmt;

/// Returns whether writing a value as JSON is large work.
pub(super) fn is_large<T: Serialize + ?Sized>(value: &T) -> bool {
    is_at_least(value, IN_PLACE_BYTES as usize)
}

/// Reports whether the JSON of a value has at least `bytes`, by its strings and the number of its parts. The work is bounded by `bytes`.
fn is_at_least<T: Serialize + ?Sized>(value: &T, bytes: usize) -> bool {
    let mut left = Left(bytes);
    value.serialize(&mut left).is_err()
}

/// How many bytes are left until a value is long.
struct Left(usize);

impl Left {
    fn take(&mut self, bytes: usize) -> Result<(), IsLong> {
        self.0 = self.0.checked_sub(bytes).filter(|left| *left > 0).ok_or(IsLong)?;
        Ok(())
    }
}

/// The value is long, or cannot be written at all, which the caller finds out when it writes.
#[derive(Debug)]
struct IsLong;

impl fmt::Display for IsLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value is long")
    }
}

impl std::error::Error for IsLong {}

impl ser::Error for IsLong {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Each number, name of a variant, and bracket counts as this many bytes.
const PART_BYTES: usize = 4;

macro_rules! parts {
    ($($method:ident($type:ty)),*) => {
        $(fn $method(self, _: $type) -> Result<(), IsLong> {
            self.take(PART_BYTES)
        })*
    };
}

impl Serializer for &mut Left {
    type Ok = ();
    type Error = IsLong;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    parts!(serialize_bool(bool), serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64), serialize_i128(i128));
    parts!(serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64), serialize_u128(u128));
    parts!(serialize_f32(f32), serialize_f64(f64), serialize_char(char), serialize_unit_struct(&'static str));

    fn serialize_str(self, text: &str) -> Result<(), IsLong> {
        self.take(PART_BYTES + text.len())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), IsLong> {
        self.take(PART_BYTES * bytes.len())
    }

    fn serialize_none(self) -> Result<(), IsLong> {
        self.take(PART_BYTES)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), IsLong> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), IsLong> {
        self.take(PART_BYTES)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), IsLong> {
        self.take(variant.len())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), IsLong> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(self, _: &str, _: u32, variant: &str, value: &T) -> Result<(), IsLong> {
        self.take(PART_BYTES + variant.len())?;
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, IsLong> {
        self.take(PART_BYTES)?;
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, IsLong> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, IsLong> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, variant: &'static str, _: usize) -> Result<Self, IsLong> {
        self.take(variant.len())?;
        self.serialize_seq(None)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, IsLong> {
        self.serialize_seq(None)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, IsLong> {
        self.serialize_seq(None)
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, variant: &'static str, _: usize) -> Result<Self, IsLong> {
        self.take(variant.len())?;
        self.serialize_seq(None)
    }
}

macro_rules! elements {
    ($($kind:ident: $method:ident),*) => {
        $(impl ser::$kind for &mut Left {
            type Ok = ();
            type Error = IsLong;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), IsLong> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), IsLong> {
                Ok(())
            }
        })*
    };
}

elements!(SerializeSeq: serialize_element, SerializeTuple: serialize_element);
elements!(SerializeTupleStruct: serialize_field, SerializeTupleVariant: serialize_field);

impl ser::SerializeMap for &mut Left {
    type Ok = ();
    type Error = IsLong;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), IsLong> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), IsLong> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), IsLong> {
        Ok(())
    }
}

macro_rules! fields {
    ($($kind:ident),*) => {
        $(impl ser::$kind for &mut Left {
            type Ok = ();
            type Error = IsLong;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), IsLong> {
                self.take(PART_BYTES + name.len())?;
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), IsLong> {
                Ok(())
            }
        })*
    };
}

fields!(SerializeStruct, SerializeStructVariant);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,40}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::hash_map("[a-z]{0,9}", inner, 0..8).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        /// A value that is not long takes at most six times as many bytes when it is written, as one byte may become `\u0000`.
        #[test]
        fn value_below_the_bound_is_short_when_written(value in value(), bound in 1_usize..500) {
            if !is_at_least(&value, bound) {
                prop_assert!(value.to_string().len() <= 6 * bound, "{value}");
            }
        }
    }

    #[test]
    fn size_check_counts_strings_and_nested_lists() {
        assert!(is_at_least(&"x".repeat(100), 100));
        assert!(!is_at_least(&"x".repeat(90), 100));
        assert!(is_at_least(&json!({"a": {"b": vec![0; 100]}}), 100));
    }
}
