//! The digest of a content: its SHA-256.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// The SHA-256 of an object's bytes, displayed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

/// A text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a digest: expected 64 hexadecimal digits, as `atoll object put` prints them")]
pub struct BadDigest;

impl Digest {
    /// The digest of bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// From the 32 bytes of a SHA-256.
    pub fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// The 32 bytes of the SHA-256.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Computes a digest incrementally.
#[derive(Clone, Debug, Default)]
pub struct Digester(Sha256);

impl Digester {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all added bytes.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Digest, BadDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Digest, BadDigest> {
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(BadDigest);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
            let pair = std::str::from_utf8(pair).map_err(|_| BadDigest)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| BadDigest)?;
        }
        Ok(Digest(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_digests() {
        let digest = Digest::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((digest.to_string().as_str(), text.parse()), (text, Ok(digest)));
        assert_eq!(text.to_uppercase().parse(), Ok(digest));
        for bad in ["", "ab", &text[1..], &format!("{text}0"), &text.replace('b', "+"), &text.replace('b', "é")] {
            assert_eq!(bad.parse::<Digest>(), Err(BadDigest), "{bad}");
        }
    }
}
