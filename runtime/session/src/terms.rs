//! The terms of a session: what a client asks of a server that schedules sessions.

use crate::limits::STORED_AFTER;

/// Class, device and share that a client asks for. As a text: `class=best-effort&device=host`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// Whether its work is real-time (`class=real-time`) or best-effort; `None` if the server
    /// chooses.
    pub is_real_time: Option<bool>,
    /// The tenant, for users that may choose; `None` for that of the connection.
    pub tenant: Option<String>,
    /// The name of the device; `None` if the server chooses.
    pub device: Option<String>,
    /// Device memory in MiB; `None` if the server chooses.
    pub memory_mib: Option<u64>,
    /// Percentage of the compute units of the device (`sm_partition`). A session has a share of its
    /// own if this or one of the quotas is given.
    pub sm_partition: Option<f64>,
    /// The fraction of the device's time that the session gets whenever it has work.
    pub quota_request: Option<f64>,
    /// The upper limit of that fraction.
    pub quota_limit: Option<f64>,
    /// The number of equal runs after which the client stores a function; `None` for no stored
    /// functions.
    pub stored_functions: Option<u32>,
}

/// Why the text of terms is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// A part without `=`.
    #[error("{0:?} is not NAME=VALUE")]
    NoValue(String),
    /// An unknown name.
    #[error(
        "there is no term {0:?}; there are class, tenant, device, memory_mib, sm_partition, quota_request, \
        quota_limit and stored_functions"
    )]
    Unknown(String),
    /// A value that the term cannot have.
    #[error("{value:?} is not a value of {name}: {wanted}")]
    Value {
        /// The term.
        name: &'static str,
        /// The value.
        value: String,
        /// The values that it can have.
        wanted: &'static str,
    },
}

impl Terms {
    /// Reads the text of a greeting.
    ///
    /// # Errors
    /// If a part is not a known term with a valid value.
    pub fn read(text: &str) -> Result<Terms, TermsError> {
        let mut terms = Terms::default();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| TermsError::NoValue(part.to_owned()))?;
            let number = |name| {
                let wrong = || TermsError::Value { name, value: value.to_owned(), wanted: "a number" };
                value.parse::<f64>().ok().filter(|number| number.is_finite()).map(Some).ok_or_else(wrong)
            };
            match name {
                "class" => {
                    let wanted = "real-time or best-effort";
                    let wrong = || TermsError::Value { name: "class", value: value.to_owned(), wanted };
                    let classes = [("real-time", true), ("best-effort", false)];
                    let found = classes.into_iter().find(|(class, _)| *class == value);
                    terms.is_real_time = Some(found.ok_or_else(wrong)?.1);
                }
                "tenant" => terms.tenant = Some(value.to_owned()),
                "device" => terms.device = Some(value.to_owned()),
                "memory_mib" => {
                    let wanted = "a whole number of MiB, at least 1";
                    let wrong = || TermsError::Value { name: "memory_mib", value: value.to_owned(), wanted };
                    terms.memory_mib = Some(value.parse().ok().filter(|mib| *mib > 0).ok_or_else(wrong)?);
                }
                "sm_partition" => terms.sm_partition = number("sm_partition")?,
                "quota_request" => terms.quota_request = number("quota_request")?,
                "quota_limit" => terms.quota_limit = number("quota_limit")?,
                "stored_functions" => {
                    let (name, wanted) = ("stored_functions", "a whole number from 2 to 1000");
                    let wrong = || TermsError::Value { name, value: value.to_owned(), wanted };
                    let is_valid = |after: &u32| (STORED_AFTER.0..=STORED_AFTER.1).contains(after);
                    terms.stored_functions = Some(value.parse().ok().filter(is_valid).ok_or_else(wrong)?);
                }
                other => return Err(TermsError::Unknown(other.to_owned())),
            }
        }
        Ok(terms)
    }

    /// The text of a greeting.
    pub fn write(&self) -> String {
        let class = self.is_real_time.map(|is| if is { "real-time" } else { "best-effort" }.to_owned());
        let number = |number: Option<f64>| number.map(|number| number.to_string());
        let parts = [
            ("class", class),
            ("tenant", self.tenant.clone()),
            ("device", self.device.clone()),
            ("memory_mib", self.memory_mib.map(|mib| mib.to_string())),
            ("sm_partition", number(self.sm_partition)),
            ("quota_request", number(self.quota_request)),
            ("quota_limit", number(self.quota_limit)),
            ("stored_functions", self.stored_functions.map(|after| after.to_string())),
        ];
        let parts = parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        parts.collect::<Vec<String>>().join("&")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_as_they_are_written() {
        let terms = Terms {
            is_real_time: Some(false),
            tenant: Some("acme".to_owned()),
            device: Some("host:1".to_owned()),
            memory_mib: Some(64),
            sm_partition: Some(50.0),
            quota_request: Some(0.25),
            quota_limit: None,
            stored_functions: Some(3),
        };
        let text = terms.write();
        assert_eq!(
            text,
            "class=best-effort&tenant=acme&device=host:1&memory_mib=64&sm_partition=50&quota_request=0.25&\
            stored_functions=3"
        );
        assert_eq!(Terms::read(&text), Ok(terms));
        assert_eq!((Terms::read(""), Terms::default().write()), (Ok(Terms::default()), String::new()));
    }

    #[test]
    fn wrong_terms_are_named() {
        for (text, named) in [
            ("class", "\"class\" is not NAME=VALUE"),
            ("class=urgent", "\"urgent\" is not a value of class: real-time or best-effort"),
            ("memory_mib=0", "\"0\" is not a value of memory_mib: a whole number"),
            ("sm_partition=NaN", "\"NaN\" is not a value of sm_partition: a number"),
            ("quota_limit=", "\"\" is not a value of quota_limit"),
            ("stored_functions=1", "\"1\" is not a value of stored_functions: a whole number from 2 to 1000"),
            ("colour=red", "there is no term \"colour\""),
        ] {
            let error = Terms::read(text).expect_err(text).to_string();
            assert!(error.starts_with(named), "{error}");
        }
    }
}
