//! The body of a head: the text of a value.

use crate::options::AgentStatesOptions;
use crate::rows::{Form, seal, unseal};
use crate::store_states::corrupt;
use bytes::Bytes;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// A value to save.
pub(crate) enum Content<'a> {
    Single(&'a Json),
    List(&'a [Json]),
}

impl<'a> Content<'a> {
    pub(crate) fn single(value: &'a Json) -> Self {
        Self::Single(value)
    }

    pub(crate) fn list(values: &'a [Json]) -> Self {
        Self::List(values)
    }

    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Single(_) => Form::Single,
            Self::List(_) => Form::List,
        }
    }

    fn size_bytes(&self) -> usize {
        match self {
            Self::Single(value) => value.as_str().len(),
            Self::List(values) => values.iter().map(|value| value.as_str().len() + 1).sum(),
        }
    }

    /// Checks the size.
    pub(crate) fn check(&self, options: &AgentStatesOptions) -> Result<()> {
        let (size_bytes, max) = (self.size_bytes(), options.value_bytes_max);
        if size_bytes <= max {
            return Ok(());
        }
        let message = format!("the state has {size_bytes} bytes and at most {max} are allowed; compact its context");
        Err(Error::new(ErrorKind::TooLarge, message))
    }

    pub(crate) fn body(&self) -> Body {
        match self {
            Self::Single(value) => Body { text: value.as_str().to_owned() },
            Self::List(values) => Body { text: format!("[{}]", values.iter().map(Json::as_str).collect::<Vec<_>>().join(",")) },
        }
    }
}

/// What a head holds.
pub(crate) struct Body {
    text: String,
}

impl Body {
    pub(crate) fn encode(&self) -> Vec<u8> {
        seal(self.text.as_bytes())
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let body = unseal("state", value)?;
        let text = std::str::from_utf8(&body).map_err(|error| corrupt("state").with_source(error))?;
        Ok(Self { text: text.to_owned() })
    }

    pub(crate) fn into_json(self) -> Result<Json> {
        Json::parse(&self.text).map_err(|error| corrupt("state").with_source(error))
    }

    pub(crate) fn into_list(self) -> Result<Vec<Json>> {
        self.into_json()?.view().map_err(|error| corrupt("list of states").with_source(error))
    }
}
