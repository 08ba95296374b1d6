//! Signatures of requests to buckets: AWS Signature Version 4, which Google Cloud Storage also accepts.

use atoll_core::calendar::Utc;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Digest of an empty body.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// An access key of a bucket. It is never printed.
#[derive(Clone)]
pub struct Credentials {
    id: String,
    secret: String,
    session: Option<String>,
}

impl Credentials {
    /// A key with its secret; `session` is the token of a temporary key.
    pub fn new(id: String, secret: String, session: Option<String>) -> Credentials {
        Credentials { id, secret, session }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// The time in the format of signatures, for example `20130524T000000Z`.
pub(crate) fn stamp(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let Utc { year, month, day, hour, minute, second } = Utc::at(seconds);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// The headers of a signed GET without a body. `path` and `query` are encoded, and the query is
/// sorted; `headers` are further ones to sign, with names in lower case.
pub(crate) fn sign(
    credentials: &Credentials,
    (host, path, query): (&str, &str, &str),
    headers: &[(&str, &str)],
    region: &str,
    stamp: &str,
) -> Vec<(String, String)> {
    let mut all: Vec<(&str, &str)> = vec![("host", host), ("x-amz-content-sha256", EMPTY), ("x-amz-date", stamp)];
    all.extend(credentials.session.as_deref().map(|token| ("x-amz-security-token", token)));
    all.extend(headers);
    all.sort_unstable();
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = all.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("GET\n{path}\n{query}\n{lines}\n{names}\n{EMPTY}");
    let day = &stamp[..8];
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex(&Sha256::digest(request.as_bytes())));
    let mut key = mac(format!("AWS4{}", credentials.secret).as_bytes(), day);
    for part in [region, "s3", "aws4_request"] {
        key = mac(&key, part);
    }
    let signature = hex(&mac(&key, &text));
    let id = &credentials.id;
    let value = format!("AWS4-HMAC-SHA256 Credential={id}/{scope},SignedHeaders={names},Signature={signature}");
    let own = all.into_iter().filter(|(name, _)| name.starts_with("x-amz-"));
    let mut signed: Vec<(String, String)> = own.map(|(name, value)| (name.into(), value.into())).collect();
    signed.push(("authorization".into(), value));
    signed
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length is possible");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The examples of Amazon's documentation.
    #[test]
    fn signatures_are_those_of_the_documentation() {
        let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let credentials = Credentials::new("AKIAIOSFODNN7EXAMPLE".into(), secret.into(), None);
        let stamp = stamp(UNIX_EPOCH + Duration::from_secs(1_369_353_600));
        assert_eq!(stamp, "20130524T000000Z");
        let host = "examplebucket.s3.amazonaws.com";
        for (path, query, headers, signature) in [
            (
                "/test.txt",
                "",
                &[("range", "bytes=0-9")][..],
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            ("/", "max-keys=2&prefix=J", &[][..], "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ] {
            let signed = sign(&credentials, (host, path, query), headers, "us-east-1", &stamp);
            let (name, value) = signed.last().unwrap();
            assert_eq!(name, "authorization");
            assert!(value.ends_with(&format!("Signature={signature}")), "{value}");
        }
        assert!(!format!("{credentials:?}").contains("EXAMPLE"));
    }
}
