//! The names in a client certificate.

use rustls_pki_types::CertificateDer;
use std::str::FromStr;

/// A name by which the configuration assigns certificates to tenants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CertificateName {
    /// The common name of the subject.
    Common(String),
    /// A DNS name of the subject's alternative names, in lower case.
    Dns(String),
    /// A URI of the subject's alternative names, for example a SPIFFE id.
    Uri(String),
}

impl FromStr for CertificateName {
    type Err = String;

    fn from_str(text: &str) -> Result<CertificateName, String> {
        match text.split_once(':') {
            Some(("cn", name)) if !name.is_empty() => Ok(CertificateName::Common(name.into())),
            Some(("dns", name)) if !name.is_empty() => Ok(CertificateName::Dns(name.to_ascii_lowercase())),
            Some(("uri", name)) if !name.is_empty() => Ok(CertificateName::Uri(name.into())),
            _ => Err(format!(
                "`{}` is not the name of a certificate; use cn:NAME, dns:NAME or uri:URI",
                text.escape_debug()
            )),
        }
    }
}

/// The names in a certificate that TLS has verified. Parts of it that cannot be parsed are skipped.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<CertificateName> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    let dns = certificate.valid_dns_names().map(|name| CertificateName::Dns(name.to_ascii_lowercase()));
    let uris = certificate.valid_uri_names().map(|uri| CertificateName::Uri(uri.into()));
    let common = common_names(certificate.subject()).into_iter().map(CertificateName::Common);
    common.chain(dns).chain(uris).collect()
}

/// DER tags (X.690) of the parts of a name.
mod tag {
    pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
    pub(super) const UTF8_STRING: u8 = 0x0c;
    pub(super) const PRINTABLE_STRING: u8 = 0x13;
    pub(super) const IA5_STRING: u8 = 0x16;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const SET: u8 = 0x31;
}

/// The attribute type `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The common names in the contents of a `Name` (RFC 5280 §4.1.2.4): a list of sets of pairs of a
/// type and a value.
fn common_names(mut subject: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((tag::SET, mut set, rest)) = element(subject) {
        subject = rest;
        while let Some((tag::SEQUENCE, pair, others)) = element(set) {
            set = others;
            let Some((tag::OBJECT_IDENTIFIER, COMMON_NAME, value)) = element(pair) else { continue };
            let Some((tag::UTF8_STRING | tag::PRINTABLE_STRING | tag::IA5_STRING, value, [])) = element(value) else {
                continue;
            };
            names.extend(std::str::from_utf8(value).ok().map(str::to_owned));
        }
    }
    names
}

/// Splits DER at its first element: its tag, its contents, and the bytes after it. `None` if there
/// is no complete element, or if its length field has more than two bytes.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (length, rest) = match der.get(1..)? {
        [length @ 0..=0x7f, rest @ ..] => (usize::from(*length), rest),
        [0x81, length, rest @ ..] => (usize::from(*length), rest),
        [0x82, high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        _ => return None,
    };
    let (contents, after) = rest.split_at_checked(length)?;
    Some((der[0], contents, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn certificate(common: &[&str], alternative: &[SanType]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "x".repeat(200));
        for name in common {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = alternative.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn common_dns_and_uri_names_are_read() {
        let alternative = [
            SanType::DnsName("Vision.Example".try_into().unwrap()),
            SanType::URI("spiffe://example/vision".try_into().unwrap()),
            SanType::IpAddress([127, 0, 0, 1].into()),
        ];
        let expected: Vec<CertificateName> = ["cn:vision é", "dns:vision.example", "uri:spiffe://example/vision"]
            .map(|name| name.parse().unwrap())
            .into();
        assert_eq!(names(&certificate(&["vision é"], &alternative)), expected);
        assert_eq!(names(&certificate(&[], &[])), []);
        assert_eq!(names(&CertificateDer::from(&b"not a certificate"[..])), []);
    }

    #[test]
    fn broken_subjects_have_no_names() {
        let whole =
            [&[tag::SET, 12, tag::SEQUENCE, 10, tag::OBJECT_IDENTIFIER, 3][..], COMMON_NAME, &[0x0c, 3], b"abc"]
                .concat();
        assert_eq!(common_names(&whole), ["abc"]);
        for end in 0..whole.len() {
            assert_eq!(common_names(&whole[..end]), [""; 0], "{end}");
        }
        for (at, byte) in (0..whole.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
            let mut changed = whole.clone();
            changed[at] = byte;
            assert!(common_names(&changed).len() <= 1);
        }
    }

    #[test]
    fn names_of_the_configuration_have_a_kind() {
        assert_eq!("dns:A.Example".parse(), Ok(CertificateName::Dns("a.example".into())));
        assert_eq!("uri:spiffe://a:1/b".parse(), Ok(CertificateName::Uri("spiffe://a:1/b".into())));
        for wrong in ["", "vision", "cn:", "CN=vision", "dn:x"] {
            assert!(wrong.parse::<CertificateName>().is_err(), "{wrong}");
        }
    }
}
