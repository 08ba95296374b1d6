//! The place of a request in its sequence.

use atoll_protocol::{Parameters, ProtocolError};
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest `sequence_id` in bytes.
const ID_BYTES_MAX: usize = 256;

/// Identifies a sequence among those of a model. As in Triton, a number and a text never name the
/// same sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Id {
    Number(u64),
    Text(String),
    /// Chosen by the daemon, for a request whose steps are a sequence that no other request joins.
    Own(u64),
}

/// The number of the next sequence that no other request joins.
static NEXT_OWN: AtomicU64 = AtomicU64::new(0);

/// The sequence parameters of a request.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(super) id: Id,
    pub(super) starts: bool,
    pub(super) ends: bool,
}

impl Place {
    /// Reads the request's parameters. `None` if there is no `sequence_id`, or if it is 0 or empty,
    /// which clients send for requests without a sequence.
    pub(crate) fn of(parameters: &Parameters) -> Result<Option<Place>, ProtocolError> {
        let (starts, ends) = (parameters.boolean("sequence_start")?, parameters.boolean("sequence_end")?);
        let refused = |reason: String| ProtocolError::Parameter { name: "sequence_id".into(), reason };
        let id = match parameters.get("sequence_id").and_then(|value| value.as_str()) {
            Some(text) if text.len() > ID_BYTES_MAX => {
                return Err(refused(format!("it has {} bytes; the limit is {ID_BYTES_MAX}", text.len())));
            }
            Some("") => None,
            Some(text) => Some(Id::Text(text.into())),
            None => parameters.unsigned("sequence_id")?.filter(|number| *number != 0).map(Id::Number),
        };
        Ok(id.map(|id| Place { id, starts: starts.unwrap_or(false), ends: ends.unwrap_or(false) }))
    }
}

impl Place {
    /// The place of a request that is a sequence of its own.
    pub(crate) fn alone() -> Place {
        Place { id: Id::Number(1), starts: true, ends: true }
    }

    /// The place of a request whose steps are a sequence that no other request joins.
    pub(crate) fn own() -> Place {
        Place { id: Id::Own(NEXT_OWN.fetch_add(1, Ordering::Relaxed)), starts: true, ends: true }
    }

    /// Whether the request starts its sequence.
    pub(crate) fn starts(&self) -> bool {
        self.starts
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Id::Number(number) => write!(f, "{number}"),
            Id::Text(text) => write!(f, "`{text}`"),
            Id::Own(number) => write!(f, "of request {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(json: &str) -> Result<Option<(String, bool, bool)>, ProtocolError> {
        let place = Place::of(&serde_json::from_str(json).unwrap())?;
        Ok(place.map(|place| (place.id.to_string(), place.starts, place.ends)))
    }

    #[test]
    fn places_are_read_as_clients_write_them() {
        assert_eq!(place("{}"), Ok(None));
        assert_eq!(place(r#"{"sequence_id":0,"sequence_start":true}"#), Ok(None));
        assert_eq!(place(r#"{"sequence_id":"","sequence_end":true}"#), Ok(None));
        assert_eq!(
            place(r#"{"sequence_id":7,"sequence_start":true,"sequence_end":false}"#),
            Ok(Some(("7".into(), true, false)))
        );
        assert_eq!(place(r#"{"sequence_id":"a b","sequence_end":true}"#), Ok(Some(("`a b`".into(), false, true))));
        for bad in [r#"{"sequence_id":-1}"#, r#"{"sequence_id":true}"#, r#"{"sequence_id":1,"sequence_start":1}"#] {
            assert!(place(bad).is_err(), "{bad}");
        }
        assert!(place(&format!(r#"{{"sequence_id":"{}"}}"#, "x".repeat(300))).is_err());
    }
}
