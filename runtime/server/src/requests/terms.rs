//! The parameters of an inference request, besides its tensors.

use crate::limits::REQUEST_ID_BYTES_MAX;
use crate::prices::price;
use crate::sequences::place::Place;
use atoll_core::graphs::Cost;
use atoll_engine::Class;
use atoll_protocol::{Parameters, ProtocolError};
use std::time::Duration;

/// The parameters of a request: class, priority, deadline, instance and others.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(super) id: String,
    pub(super) class: Option<Class>,
    pub(super) priority: u32,
    pub(super) instance: Option<String>,
    pub(super) deadline: Option<Duration>,
    /// Price limit of a request of a graph.
    pub(super) price_max: Option<Cost>,
    pub(super) sequence: Option<Place>,
}

impl Terms {
    /// Reads the parameters of a request.
    pub(super) fn of(id: &str, parameters: &Parameters) -> Result<Terms, ProtocolError> {
        check_id(id)?;
        let (class, priority) = class(parameters)?;
        let (deadline, sequence) = (deadline(parameters)?, Place::of(parameters)?);
        let instance = parameters.text("instance")?.map(str::to_owned);
        let price_max = price_max(parameters)?;
        Ok(Terms { class, priority, instance, deadline, price_max, sequence, id: id.into() })
    }

    /// Adds a deadline, as time from now. The earlier one applies.
    pub(crate) fn limit(&mut self, deadline: Option<Duration>) {
        self.deadline = self.deadline.into_iter().chain(deadline).min();
    }

    /// Whether the request starts a sequence.
    pub(crate) fn starts_sequence(&self) -> bool {
        self.sequence.as_ref().is_some_and(Place::starts)
    }
}

fn check_id(id: &str) -> Result<(), ProtocolError> {
    if id.len() <= REQUEST_ID_BYTES_MAX {
        return Ok(());
    }
    let reason = format!("it has {} bytes; the limit is {REQUEST_ID_BYTES_MAX}", id.len());
    Err(ProtocolError::Parameter { name: "id".into(), reason })
}

/// Service class and priority within the class. `priority` 1 is real-time; 2 and above are
/// best-effort, lower numbers first; 0 or none selects the model's own class. `real_time_priority`
/// orders real-time requests.
fn class(parameters: &Parameters) -> Result<(Option<Class>, u32), ProtocolError> {
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let among_real_time = number(parameters.unsigned("real_time_priority")?.unwrap_or(0));
    Ok(match parameters.unsigned("priority")?.unwrap_or(0) {
        0 => (None, among_real_time),
        1 => (Some(Class::RealTime), among_real_time),
        level => (Some(Class::BestEffort), number(level - 2)),
    })
}

/// The earlier of Triton's `timeout` and Atoll's `deadline_us`, both in microseconds from now; 0
/// means no deadline.
fn deadline(parameters: &Parameters) -> Result<Option<Duration>, ProtocolError> {
    let given = [parameters.unsigned("timeout")?, parameters.unsigned("deadline_us")?];
    Ok(given.into_iter().flatten().filter(|us| *us > 0).min().map(Duration::from_micros))
}

/// Parses `price_max`, the price limit of a request of a graph, in units of account.
fn price_max(parameters: &Parameters) -> Result<Option<Cost>, ProtocolError> {
    let Some(value) = parameters.get("price_max") else { return Ok(None) };
    let refused = || ProtocolError::Parameter {
        name: "price_max".into(),
        reason: format!("{value} is not a price of 0 or more"),
    };
    value.as_f64().and_then(price).map(Some).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(json: &str) -> Parameters {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn priorities_are_classes() {
        for (json, expected) in [
            ("{}", None),
            (r#"{"priority":0}"#, None),
            (r#"{"priority":1}"#, Some(Class::RealTime)),
            (r#"{"priority":1.0}"#, Some(Class::RealTime)),
            (r#"{"priority":2}"#, Some(Class::BestEffort)),
            (r#"{"priority":18446744073709551615}"#, Some(Class::BestEffort)),
        ] {
            assert_eq!(class(&parameters(json)).map(|(class, _)| class), Ok(expected), "{json}");
        }
        assert!(class(&parameters(r#"{"priority":-1}"#)).is_err());
    }

    #[test]
    fn within_a_class_a_priority_is_what_is_left_of_it() {
        for (json, expected) in [
            (r#"{"priority":1}"#, 0),
            (r#"{"priority":1,"real_time_priority":3}"#, 3),
            (r#"{"priority":2}"#, 0),
            (r#"{"priority":7,"real_time_priority":3}"#, 5),
            (r#"{"priority":18446744073709551615}"#, u32::MAX),
        ] {
            assert_eq!(class(&parameters(json)).map(|(_, priority)| priority), Ok(expected), "{json}");
        }
    }

    #[test]
    fn ids_have_a_length_that_each_answer_may_repeat() {
        let of = |bytes: usize| Terms::of(&"x".repeat(bytes), &Parameters::default());
        assert_eq!(of(REQUEST_ID_BYTES_MAX).map(|terms| terms.id.len()), Ok(REQUEST_ID_BYTES_MAX));
        let refused = of(REQUEST_ID_BYTES_MAX + 1).unwrap_err().to_string();
        assert_eq!(refused, "parameter `id`: it has 1025 bytes; the limit is 1024");
    }

    #[test]
    fn a_price_is_a_number_from_0_on() {
        assert_eq!(price_max(&parameters("{}")), Ok(None));
        for (json, units) in [(r#"{"price_max":0}"#, 0.0), (r#"{"price_max":0.25}"#, 0.25)] {
            assert_eq!(price_max(&parameters(json)).map(|price| price.map(Cost::units)), Ok(Some(units)), "{json}");
        }
        for bad in [r#"{"price_max":-1}"#, r#"{"price_max":"1"}"#, r#"{"price_max":true}"#] {
            assert!(price_max(&parameters(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_sooner_deadline_counts() {
        for (json, expected) in [
            (r#"{"timeout":0}"#, None),
            (r#"{"timeout":500}"#, Some(500)),
            (r#"{"timeout":500,"deadline_us":20}"#, Some(20)),
            (r#"{"timeout":0,"deadline_us":20}"#, Some(20)),
        ] {
            assert_eq!(deadline(&parameters(json)), Ok(expected.map(Duration::from_micros)), "{json}");
        }
    }
}
