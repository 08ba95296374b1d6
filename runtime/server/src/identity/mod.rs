//! Who acts, and what they may do.
//!
//! A [`Principal`] is a tenant with its rights. On the control socket it follows from the peer's
//! user, over HTTP from a token, a client certificate, or the rule for anonymous requests
//! ([`gate`]). The rights and quotas of a tenant are the same on every way in; `principal.rs` is
//! the only place that checks rights.

mod access;
mod certificate;
mod configuration;
mod gate;
mod keys;
mod patterns;
mod principal;
mod reason;
mod refusals;

pub(crate) use access::Denied;
pub use access::{Access, AccessError};
pub(crate) use gate::{Gate, Peer, Reloaded};
pub use gate::{GateError, IdentityConfig};
pub use keys::{KeyError, KeyFile, KeyRecord, KeyState, Keys, TOKEN_PREFIX, Token};
pub use principal::TenantLimits;
pub(crate) use principal::{Denial, Principal};
pub(crate) use reason::Reason;
pub(crate) use refusals::Refusals;
