//! Tenants: owners of functions, memory and objects, to whom usage is billed.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest name of a tenant, in bytes: still fits a metric label and a table column.
pub const TENANT_BYTES_MAX: usize = 64;

/// The name of a tenant: letters, digits, `-`, `_` and `.`, beginning with a letter or a digit.
/// Cheap to clone.
///
/// [`Tenant::default`] is `local`, to which the models of the daemon's own repository belong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub struct Tenant(Arc<str>);

/// A text that is not a valid tenant name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTenant(String);

impl Tenant {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the tenant of models in the daemon's own repository.
    pub fn is_local(&self) -> bool {
        *self.0 == *LOCAL
    }
}

const LOCAL: &str = "local";

impl Default for Tenant {
    fn default() -> Tenant {
        Tenant(LOCAL.into())
    }
}

impl FromStr for Tenant {
    type Err = BadTenant;

    fn from_str(name: &str) -> Result<Tenant, BadTenant> {
        if is_plain_name(name, TENANT_BYTES_MAX) {
            Ok(Tenant(name.into()))
        } else {
            Err(BadTenant(name.chars().take(TENANT_BYTES_MAX).collect()))
        }
    }
}

impl TryFrom<String> for Tenant {
    type Error = BadTenant;

    fn try_from(name: String) -> Result<Tenant, BadTenant> {
        name.parse()
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> String {
        tenant.as_str().into()
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whether a text is safe in paths, labels and commands: at most `bytes_max` letters, digits, `-`,
/// `_` and `.`, beginning with a letter or a digit.
pub fn is_plain_name(name: &str, bytes_max: usize) -> bool {
    let is_ordinary = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins_well = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    begins_well && name.len() <= bytes_max && name.bytes().all(is_ordinary)
}

impl fmt::Display for BadTenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a tenant name; use up to {TENANT_BYTES_MAX} letters, digits, `-`, `_` and `.`, \
             beginning with a letter or a digit",
            self.0.escape_debug()
        )
    }
}

impl std::error::Error for BadTenant {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["local", "a", "7", "team-a_b.c", &"x".repeat(TENANT_BYTES_MAX)] {
            assert_eq!(good.parse::<Tenant>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".", "..", "a/b", "a:b", "ä", "a b", &"x".repeat(TENANT_BYTES_MAX + 1)] {
            assert!(bad.parse::<Tenant>().is_err(), "{bad}");
        }
        assert!(Tenant::default().is_local() && !"a".parse::<Tenant>().unwrap().is_local());
    }
}
