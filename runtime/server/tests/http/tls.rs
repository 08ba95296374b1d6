//! TLS: valid and invalid certificates of the daemon and of clients.

use crate::support::{Authority, Connection, Daemon, Leaf, Options, eventually, write_bundle};
use atoll_server::{Access, ConnectionLimits, IdentityConfig, KeyFile, TlsFiles};
use rcgen::{CertificateParams, SanType, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Setup {
    daemon: Daemon,
    authority: Authority,
    files: TlsFiles,
    folder: TempDir,
}

impl Setup {
    /// A daemon that asks for client certificates of the authority if `tenants` is given.
    fn start(tenants: Option<&str>, change: impl FnOnce(&mut Options, &TempDir)) -> Setup {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("authority"));
        let (certificate, key) = authority.issue(&["localhost", "127.0.0.1"], |_| ()).write(folder.path());
        let mut identity = IdentityConfig::own();
        let client_ca = tenants.map(|text| {
            let (ca, config) = (folder.path().join("ca.pem"), folder.path().join("atoll.toml"));
            std::fs::write(&ca, &authority.pem).unwrap();
            std::fs::write(&config, text).unwrap();
            identity.access = Access::read(&config, 0).unwrap();
            ca
        });
        let files = TlsFiles { certificate, key, client_ca, metrics: false };
        identity.tls = Some(files.clone());
        let mut options = Options { identity: Some(identity), ..Options::default() };
        change(&mut options, &folder);
        let daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
        Setup { daemon, authority, files, folder }
    }

    /// Status and body of the answer to a request with a client certificate, or the error of TLS.
    fn ask(&self, client: Option<&Leaf>, path: &str, head: &str) -> io::Result<(u16, String)> {
        ask(self.daemon.http, &self.authority, client, path, head)
    }

    fn denied(&self, reason: &str) -> bool {
        let line = format!("atoll_denied_requests_total{{reason=\"{reason}\"}} ");
        let metrics = self.daemon.metrics();
        metrics.lines().find_map(|text| text.strip_prefix(&line)).unwrap() != "0"
    }
}

fn connect(address: SocketAddr, authority: &Authority, client: Option<&Leaf>) -> io::Result<Tls> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some(leaf) => {
            let chain = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
            let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let name = ServerName::try_from("localhost").unwrap();
    Ok(StreamOwned::new(ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?, stream))
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn ask(
    address: SocketAddr,
    authority: &Authority,
    client: Option<&Leaf>,
    path: &str,
    head: &str,
) -> io::Result<(u16, String)> {
    let mut stream = connect(address, authority, client)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}\r\n")?;
    let mut text = String::new();
    match stream.read_to_string(&mut text) {
        // The connection may end without TLS's closing message.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof || text.is_empty() => return Err(error),
        _ => {}
    }
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}

const TENANTS: &str = r#"
    [tenant.vision]
    certificates = ["cn:vision", "uri:spiffe://example/vision"]
    models = ["toy"]
    [tenant.speech]
    certificates = ["cn:speech", "dns:speech.example"]
    models = []
"#;

#[test]
fn requests_are_encrypted_and_the_metrics_port_stays_plain() {
    let setup = Setup::start(None, |_, _| ());
    assert_eq!(setup.ask(None, "/v2/models/toy", "").unwrap().0, 200);
    assert!(setup.daemon.metrics().contains("atoll_connections "));
    // Many requests on one connection, each answered by one write.
    let mut stream = connect(setup.daemon.http, &setup.authority, None).unwrap();
    for _ in 0..20 {
        stream.write_all(b"GET /v2/models/toy HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk).unwrap();
        assert!(chunk.starts_with(b"HTTP/1.1 200") && chunk[..count].ends_with(b"}"));
    }
    // HTTP without TLS is not served.
    let mut plain = Connection::open(setup.daemon.http);
    plain.send_raw(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    plain.closed();
    eventually(|| setup.denied("handshake"));
}

#[test]
fn the_metrics_port_has_tls_if_asked() {
    let setup = Setup::start(None, |options, _| {
        options.identity.as_mut().unwrap().tls.as_mut().unwrap().metrics = true;
    });
    let (status, text) = ask(setup.daemon.metrics, &setup.authority, None, "/metrics", "").unwrap();
    assert!(status == 200 && text.contains("atoll_connections"), "{status} {text}");
}

#[test]
fn a_client_certificate_is_its_tenant() {
    let setup = Setup::start(Some(TENANTS), |_, _| ());
    let vision = setup.authority.named("vision", |_| ());
    let spiffe = setup.authority.issue(&[], |params| {
        params.subject_alt_names = vec![SanType::URI("spiffe://example/vision".try_into().unwrap())];
    });
    let speech = setup.authority.issue(&["speech.example"], |_| ());
    for (leaf, expected) in [(&vision, 200), (&spiffe, 200), (&speech, 404)] {
        assert_eq!(setup.ask(Some(leaf), "/v2/models/toy", "").unwrap().0, expected);
    }
    let unknown = setup.authority.named("unknown", |_| ());
    let both = setup.authority.issue(&["speech.example"], |params| {
        params.distinguished_name.push(rcgen::DnType::CommonName, "vision");
    });
    for leaf in [&unknown, &both] {
        let (status, text) = setup.ask(Some(leaf), "/v2/models/toy", "").unwrap();
        assert!(status == 403 && text.contains("\"unknown_certificate\""), "{status} {text}");
    }
}

#[test]
fn client_certificates_that_are_not_valid_fail_the_handshake() {
    let setup = Setup::start(Some(TENANTS), |_, _| ());
    let expired = setup.authority.named("vision", |params: &mut CertificateParams| {
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    let early = setup.authority.named("vision", |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2900, 1, 1);
    });
    let foreign = Authority::new("another").named("vision", |_| ());
    // A forged authority with the same name and another key.
    let forged = Authority::new("authority").named("vision", |_| ());
    for (what, leaf) in [
        ("expired", Some(&expired)),
        ("not yet valid", Some(&early)),
        ("of an unknown authority", Some(&foreign)),
        ("forged", Some(&forged)),
        ("none", None),
    ] {
        assert!(setup.ask(leaf, "/v2/models/toy", "").is_err(), "{what}");
    }
    eventually(|| setup.denied("handshake"));
    assert_eq!(setup.ask(Some(&setup.authority.named("vision", |_| ())), "/v2/models/toy", "").unwrap().0, 200);
}

#[test]
fn with_tokens_too_a_client_may_have_either() {
    let mut token = String::new();
    let setup = Setup::start(Some(TENANTS), |options, folder| {
        let keys = folder.path().join("keys.json");
        token = KeyFile::create(&keys, "vision".parse().unwrap(), None, "").unwrap().to_string();
        options.identity.as_mut().unwrap().keys = Some(keys);
    });
    let head = format!("Authorization: Bearer {token}\r\n");
    let speech = setup.authority.named("speech", |_| ());
    assert_eq!(setup.ask(None, "/v2/models/toy", &head).unwrap().0, 200);
    assert_eq!(setup.ask(Some(&speech), "/v2/models/toy", "").unwrap().0, 404);
    assert_eq!(setup.ask(Some(&speech), "/v2/models/toy", &head).unwrap().0, 200, "the token decides");
    assert_eq!(setup.ask(None, "/v2/models/toy", "").unwrap().0, 401);
    assert_eq!(setup.ask(Some(&speech), "/v2/models/toy", "Authorization: Bearer x\r\n").unwrap().0, 401);
    let foreign = Authority::new("another").named("vision", |_| ());
    assert!(setup.ask(Some(&foreign), "/v2/models/toy", &head).is_err(), "a bad certificate is not no certificate");
}

#[test]
fn certificates_are_read_again_and_broken_ones_are_not_taken() {
    let mut setup = Setup::start(None, |_, _| ());
    let next = Authority::new("next");
    std::fs::write(&setup.files.certificate, "nothing").unwrap();
    let error = setup.daemon.reload().unwrap_err();
    assert!(error.contains("cert.pem: it has no certificate in PEM form"), "{error}");
    assert_eq!(setup.ask(None, "/v2", "").unwrap().0, 200);
    // The certificate does not match the key.
    let leaf = next.issue(&["localhost"], |_| ());
    std::fs::write(&setup.files.certificate, &leaf.certificate).unwrap();
    let error = setup.daemon.reload().unwrap_err();
    assert!(error.contains("cert.pem") && error.contains("key.pem"), "{error}");
    assert_eq!(setup.ask(None, "/v2", "").unwrap().0, 200);
    leaf.write(setup.folder.path());
    setup.daemon.reload().unwrap();
    assert!(setup.ask(None, "/v2", "").is_err(), "the old authority did not issue the new certificate");
    setup.authority = next;
    assert_eq!(setup.ask(None, "/v2", "").unwrap().0, 200);
}

#[test]
fn a_handshake_that_does_not_end_is_cut_off_and_gives_way_to_others() {
    let limits = |head_timeout, most| ConnectionLimits { head_timeout, most, ..ConnectionLimits::default() };
    let setup = Setup::start(None, |options, _| {
        options.connections = Some(limits(Duration::from_millis(200), 64));
    });
    for begin in [&b""[..], &[22, 3, 1]] {
        let mut silent = Connection::open(setup.daemon.http);
        silent.send_raw(begin);
        silent.closed();
    }
    let metrics = setup.daemon.metrics();
    assert!(metrics.contains("atoll_connections_closed_total{reason=\"slow_handshake\"} 2\n"), "{metrics}");
    // Handshakes that never end take all places.
    let setup = Setup::start(None, |options, _| options.connections = Some(limits(Duration::from_secs(3600), 2)));
    let _silent: Vec<Connection> = (0..4).map(|_| Connection::open(setup.daemon.http)).collect();
    let begin = Instant::now();
    assert_eq!(setup.ask(None, "/v2", "").unwrap().0, 200);
    assert!(begin.elapsed() < Duration::from_secs(3600));
}
