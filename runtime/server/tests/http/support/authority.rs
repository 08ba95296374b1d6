//! A certificate authority of a test.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub(crate) pem: String,
}

/// A certificate with its key, in PEM form.
pub(crate) struct Leaf {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for some host names and addresses.
    pub(crate) fn issue(&self, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let mut params =
            CertificateParams::new(hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>()).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Leaf { certificate, key: key.serialize_pem() }
    }

    /// A certificate with a common name.
    pub(crate) fn named(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        self.issue(&[], |params| {
            params.distinguished_name.push(DnType::CommonName, name);
            change(params);
        })
    }
}

impl Leaf {
    /// Writes the certificate and the key to files of a folder.
    pub(crate) fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let paths = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&paths.0, &self.certificate).unwrap();
        std::fs::write(&paths.1, &self.key).unwrap();
        paths
    }
}
