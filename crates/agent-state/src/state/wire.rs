//! What all typed forms share: enums by their names in JSON, and defaults for what is missing.

use super::text;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, forward_to_deserialize_any};

/// Declares an enum whose values have names in JSON.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident, $what:literal, $compare:path { $($(#[$variant_meta:meta])* $variant:ident = $wire:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
        }

        impl $name {
            /// Every value, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns its name in JSON.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $wire,)*
                }
            }

            /// Finds a value by its name in JSON.
            ///
            /// # Errors
            /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for another name; the message lists all.
            pub fn parse(name: &str) -> treehold_core::error::Result<Self> {
                Self::ALL.iter().copied().find(|value| $compare(value.as_str(), name)).ok_or_else(|| {
                    let names: Vec<String> = Self::ALL.iter().map(|value| format!("`{}`", value.as_str())).collect();
                    let message = format!(concat!("the ", $what, " `{}` is unknown; use one of {}"), name.escape_debug(), names.join(", "));
                    treehold_core::error::Error::invalid_argument(message)
                })
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::parse(&name).map_err(|error| serde::de::Error::custom(error.message()))
            }
        }
    };
}

pub(crate) use wire_enum;

/// Lets structs that derive with `#[serde(remote = "Self")]` be read from objects only. Derived alone, they are read from arrays too.
macro_rules! only_from_objects {
    ($($name:ident),*) => {
        $(
            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    Self::deserialize($crate::state::wire::FromObject(deserializer))
                }
            }
        )*
    };
}

/// As [`only_from_objects`], for structs that are written too.
macro_rules! only_objects {
    ($($name:ident),*) => {
        $crate::state::wire::only_from_objects!($($name),*);
        $(
            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    Self::serialize(self, serializer)
                }
            }
        )*
    };
}

pub(crate) use {only_from_objects, only_objects};

/// A deserializer that reads a struct from an object only.
pub(crate) struct FromObject<D>(pub(crate) D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for FromObject<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

/// Compares names byte for byte.
pub(crate) fn exactly(one: &str, other: &str) -> bool {
    one == other
}

/// Reads a field for which `null` is the default.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Writes a typed form as compact JSON.
pub(crate) fn written<T: Serialize>(value: &T) -> String {
    text::respell(serde_json::to_string(value).expect("typed forms have only fields that JSON can express"))
}
