//! Signatures of bundles, in the format of minisign.
//!
//! A signature covers [`Bundle::signed_text`], which contains the digest of the bundle and so
//! covers the content of every member. The client reads it from a file beside the bundle and sends
//! it with the deployment.

use crate::limits::SIGNATURE_BYTES_MAX;
use atoll_kgraph::Bundle;
use minisign_verify::{Error, PublicKey, Signature};

/// The public keys whose signatures are trusted.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys(Vec<PublicKey>);

/// A text that is not a public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a public key of minisign: use the second line of a .pub file, which begins with RW and has 56 \
    characters"
)]
pub struct BadKey(String);

/// Why a signature of a bundle is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    /// The text is not a signature.
    #[error("the signature is not a signature of minisign: {0}")]
    Format(String),
    /// The key of the signature is not among the trusted keys.
    #[error("the signature is of a key that is not trusted here")]
    UnknownKey,
    /// The signature is of a trusted key, but does not match the bundle.
    #[error("the signature is not of this bundle (digest {digest}), or was changed: {reason}")]
    Wrong {
        /// The digest of the bundle.
        digest: String,
        /// The reason.
        reason: String,
    },
}

impl TrustedKeys {
    /// Parses public keys. Each text is the base64 line of a `.pub` file, or the whole file.
    ///
    /// # Errors
    /// The first text that is not a key.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<TrustedKeys, BadKey> {
        let key = |text: &'a str| {
            let line = text.trim().lines().last().unwrap_or_default().trim();
            PublicKey::from_base64(line)
                .map_err(|_| BadKey(line.chars().take(80).flat_map(char::escape_debug).collect()))
        };
        texts.into_iter().map(key).collect::<Result<_, _>>().map(TrustedKeys)
    }

    /// Checks that one of the keys signed the bundle.
    ///
    /// # Errors
    /// [`BadSignature`] if the signature is malformed, of an unknown key, or of another content.
    pub fn check(&self, bundle: &Bundle, signature: &str) -> Result<(), BadSignature> {
        if signature.len() > SIGNATURE_BYTES_MAX {
            return Err(BadSignature::Format(format!("it has {} bytes", signature.len())));
        }
        let signature = Signature::decode(signature).map_err(|error| BadSignature::Format(error.to_string()))?;
        for key in &self.0 {
            match key.verify(bundle.signed_text().as_bytes(), &signature, false) {
                Ok(()) => return Ok(()),
                Err(Error::UnexpectedKeyId) => {}
                Err(error) => {
                    return Err(BadSignature::Wrong { digest: bundle.digest().into(), reason: error.to_string() });
                }
            }
        }
        Err(BadSignature::UnknownKey)
    }
}
