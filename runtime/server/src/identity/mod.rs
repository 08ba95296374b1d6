//! Identities of clients, and their rights.
//!
//! A [`Principal`] is a tenant with its rights. On the control socket the peer's user id determines
//! it; over HTTP and gRPC a token, a client certificate, or the rule for anonymous requests
//! ([`gate`]). A tenant has the same rights and quotas on every interface. Only `principal.rs`
//! checks rights.

mod access;
mod certificate;
mod configuration;
mod gate;
mod keys;
mod patterns;
mod principal;
mod reason;
mod refusals;
mod suspension;

pub(crate) use access::Denied;
pub use access::{Access, AccessError};
pub(crate) use gate::{Gate, Peer, Reloaded};
pub use gate::{GateError, IdentityConfig};
pub use keys::{KeyError, KeyFile, KeyRecord, KeyState, Keys, TOKEN_PREFIX, Token};
pub use principal::TenantLimits;
pub(crate) use principal::{Denial, Principal};
pub(crate) use reason::Reason;
pub(crate) use refusals::Refusals;
