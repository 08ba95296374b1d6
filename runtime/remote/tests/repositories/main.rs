//! Repositories of a server in the test: which files are fetched and removed, and how objects are
//! handled that are truncated, changed, slow, wrong or missing.

mod server;

use atoll_remote::{Changes, Credentials, Options, Remote, RemoteError};
use server::{Reply, Server};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

fn options() -> Options {
    Options { pause: Duration::from_millis(1), timeout: Duration::from_secs(20), ..Options::default() }
}

fn bucket(server: &Server, cache: &TempDir, options: Options) -> Remote {
    let url = format!("s3://http://{}/models/m", server.address);
    Remote::open(&url, cache.path(), options).unwrap()
}

/// The files of a folder, by their paths.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            all.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
    all
}

fn expected(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn a_folder_follows_a_bucket() {
    let server =
        Server::new(&[("m/a/1/model.onnx", "one"), ("m/a b.toml", "two"), ("m/c.kg", "three"), ("n/d", "four")]);
    let cache = tempfile::tempdir().unwrap();
    let credentials = Some(Credentials::new("id".into(), "secret".into(), None));
    let mut remote = bucket(&server, &cache, Options { credentials, ..options() });
    assert_eq!(remote.sync().unwrap(), Changes { fetched: 3, removed: 0, bytes: 11 });
    let all = [("a/1/model.onnx", "one"), ("a b.toml", "two"), ("c.kg", "three")];
    assert_eq!(files(remote.folder()), expected(&all));
    for request in &server.state().requests {
        let signature = request.header("authorization").unwrap();
        assert!(
            signature.starts_with("AWS4-HMAC-SHA256 Credential=id/") && !signature.contains("secret"),
            "{signature}"
        );
    }
    // What is there is not fetched again, also by another process.
    assert_eq!(remote.sync().unwrap(), Changes::default());
    let mut remote = bucket(&server, &cache, options());
    assert!(remote.has_files());
    assert_eq!(remote.sync().unwrap(), Changes::default());
    server.set("m/c.kg", "other");
    server.set("m/c2.kg", "new");
    server.state().objects.remove("m/a/1/model.onnx");
    assert_eq!(remote.sync().unwrap(), Changes { fetched: 2, removed: 1, bytes: 8 });
    assert_eq!(files(remote.folder()), expected(&[("a b.toml", "two"), ("c.kg", "other"), ("c2.kg", "new")]));
    assert!(!remote.folder().join("a").exists(), "folders without files are removed");
    // A file that was changed or removed on this machine, and a folder in place of a file.
    std::fs::write(remote.folder().join("c.kg"), "x").unwrap();
    std::fs::remove_file(remote.folder().join("c2.kg")).unwrap();
    server.state().objects.remove("m/a b.toml");
    server.set("m/a b.toml/1", "two");
    assert_eq!(remote.sync().unwrap().fetched, 3);
    assert_eq!(files(remote.folder()), expected(&[("a b.toml/1", "two"), ("c.kg", "other"), ("c2.kg", "new")]));
}

#[test]
fn a_truncated_object_is_read_on_from_where_it_ended() {
    let server = Server::new(&[("m/model.onnx", "0123456789")]);
    let mut left = 2;
    server.fail(move |request, objects| {
        if request.is_listing() || left == 0 {
            return None;
        }
        left -= 1;
        let begin = if request.header("range").is_some() { 4 } else { 0 };
        let mut reply = Reply::of(if begin > 0 { 206 } else { 200 }, &objects["m/model.onnx"][begin..]);
        reply.headers.push(("Content-Range", format!("bytes {begin}-9/10")));
        Some(Reply { cut: Some(4), ..reply })
    });
    let cache = tempfile::tempdir().unwrap();
    let mut remote = bucket(&server, &cache, options());
    assert_eq!(remote.sync().unwrap().fetched, 1);
    assert_eq!(files(remote.folder()), expected(&[("model.onnx", "0123456789")]));
    let ranges: Vec<Option<String>> =
        server.gets().iter().map(|request| request.header("range").map(str::to_owned)).collect();
    assert_eq!(ranges, [None, Some("bytes=4-".into()), Some("bytes=8-".into())]);
    // One that always ends early is told, and the file stays as it is.
    server.set("m/model.onnx", "abcdefghij");
    server.fail(|request, _| (!request.is_listing()).then(|| Reply { cut: Some(0), ..Reply::of(200, "abcdefghij") }));
    let error = remote.sync().unwrap_err();
    assert!(matches!(&error, RemoteError::Lost { attempts: 6, .. }), "{error}");
    assert!(error.to_string().contains("/models/m/model.onnx"), "{error}");
    assert_eq!(files(remote.folder()), expected(&[("model.onnx", "0123456789")]));
}

#[test]
fn an_object_that_changes_while_it_is_read_is_listed_again() {
    let server = Server::new(&[("m/a.kg", "first"), ("m/b.kg", "second")]);
    let mut is_changed = false;
    server.fail(move |request, objects| {
        if !request.is_listing() && !is_changed {
            is_changed = true;
            objects.insert("m/a.kg".into(), b"changed".to_vec());
        }
        None
    });
    let cache = tempfile::tempdir().unwrap();
    let mut remote = bucket(&server, &cache, options());
    assert_eq!(remote.sync().unwrap().fetched, 2);
    assert_eq!(files(remote.folder()), expected(&[("a.kg", "changed"), ("b.kg", "second")]));
    // One that changes each time ends the attempts.
    let mut count = 0;
    server.fail(move |request, objects| {
        if !request.is_listing() {
            count += 1;
            objects.insert("m/a.kg".into(), format!("changed {count}").into_bytes());
        }
        None
    });
    server.set("m/a.kg", "again");
    let error = remote.sync().unwrap_err();
    assert!(matches!(&error, RemoteError::Changing { what, .. } if what.contains("a.kg")), "{error}");
    assert_eq!(files(remote.folder()), expected(&[("a.kg", "changed"), ("b.kg", "second")]));
}

#[test]
fn a_missing_object_removes_nothing() {
    let server = Server::new(&[("m/a.kg", "one"), ("m/b.kg", "two")]);
    let cache = tempfile::tempdir().unwrap();
    let mut remote = bucket(&server, &cache, options());
    remote.sync().unwrap();
    server.set("m/c.kg", "three");
    server.state().objects.remove("m/a.kg");
    server.fail(|request, _| request.path.ends_with("c.kg").then(|| Reply::of(404, "")));
    let error = remote.sync().unwrap_err();
    assert!(error.to_string().contains("c.kg is gone"), "{error}");
    assert_eq!(files(remote.folder()), expected(&[("a.kg", "one"), ("b.kg", "two")]));
}

#[test]
fn slow_and_busy_servers_are_asked_again_and_refusals_are_not() {
    let server = Server::new(&[("m/a.kg", "one")]);
    let mut count = 0;
    server.fail(move |request, _| {
        count += 1;
        match count {
            // A listing that ends early.
            1 => Some(Reply { cut: Some(3), ..Reply::of(200, "<ListBucketResult>") }),
            2 => Some(Reply::of(503, "<Error><Message>slow down</Message></Error>")),
            // The last byte comes much too late.
            4 if !request.is_listing() => Some(Reply { stall: Duration::from_secs(600), ..Reply::of(200, "one") }),
            _ => None,
        }
    });
    let cache = tempfile::tempdir().unwrap();
    let mut remote = bucket(&server, &cache, Options { timeout: Duration::from_secs(2), ..options() });
    assert_eq!(remote.sync().unwrap().fetched, 1);
    assert_eq!(files(remote.folder()), expected(&[("a.kg", "one")]));
    let before = server.state().requests.len();
    server.fail(|_, _| Some(Reply::of(403, "<Error><Message>Access &lt;Denied&gt;</Message></Error>")));
    let error = remote.sync().unwrap_err();
    assert!(matches!(error, RemoteError::Refused { status: 403, .. }), "{error}");
    assert!(error.to_string().contains("Access"), "{error}");
    assert_eq!(server.state().requests.len(), before + 1);
    server.fail(|_, _| Some(Reply::of(503, "")));
    assert!(matches!(remote.sync().unwrap_err(), RemoteError::Lost { attempts: 6, .. }));
    assert_eq!(files(remote.folder()).len(), 1);
}

#[test]
fn a_folder_of_a_web_server_has_a_listing_with_digests() {
    let digest =
        |text: &str| Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let listing = |path: &str, stated: &str| {
        serde_json::json!({"files": [{"path": path, "bytes": 3, "sha256": stated}]}).to_string()
    };
    let server =
        Server::new(&[("a/1/model.onnx", "one"), ("repository.json", &listing("a/1/model.onnx", &digest("one")))]);
    let cache = tempfile::tempdir().unwrap();
    let mut remote = Remote::open(&format!("http://{}/models/", server.address), cache.path(), options()).unwrap();
    assert_eq!(remote.sync().unwrap(), Changes { fetched: 1, removed: 0, bytes: 3 });
    assert_eq!(files(remote.folder()), expected(&[("a/1/model.onnx", "one")]));
    // Other bytes than the listing states, of the same number.
    server.set("repository.json", &listing("a/1/model.onnx", &digest("two")));
    let error = remote.sync().unwrap_err();
    assert!(matches!(&error, RemoteError::Digest { stated, .. } if *stated == digest("two")), "{error}");
    server.set("repository.json", &listing("../a", &digest("one")));
    assert!(matches!(remote.sync().unwrap_err(), RemoteError::Listing { .. }));
    assert_eq!(files(remote.folder()), expected(&[("a/1/model.onnx", "one")]));
}

#[test]
fn what_is_too_large_or_impossible_is_refused_before_anything_is_fetched() {
    let server = Server::new(&[("m/a", "0123456789"), ("m/b", "0")]);
    let cache = tempfile::tempdir().unwrap();
    let mut remote = bucket(&server, &cache, Options { bytes_max: 10, ..options() });
    let error = remote.sync().unwrap_err();
    assert!(matches!(error, RemoteError::TooLarge { .. }), "{error}");
    server.set("m/a", "012345678");
    assert_eq!(remote.sync().unwrap().bytes, 10);
    // A name that is a file and a folder.
    server.set("m/a", "0");
    server.set("m/a/1", "0");
    let before = server.gets().len();
    assert!(remote.sync().unwrap_err().to_string().contains("is a file and a folder"));
    // An object that is longer than its listing says.
    server.state().objects.remove("m/a/1");
    server.fail(|request, _| (!request.is_listing()).then(|| Reply::of(200, "0".repeat(1000))));
    assert_eq!(server.gets().len(), before);
    assert!(matches!(remote.sync().unwrap_err(), RemoteError::Changing { .. }));
    assert!(Remote::open("https://models.example/a", cache.path(), options()).is_err(), "there are no authorities");
}

#[test]
fn a_listing_that_never_ends_is_refused() {
    let server = Server::new(&[("m/a.kg", "one")]);
    let cache = tempfile::tempdir().unwrap();
    let mut remote = bucket(&server, &cache, options());
    remote.sync().unwrap();
    let page = |token: usize| {
        let next = format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>");
        Some(Reply::of(200, format!("<ListBucketResult>{next}</ListBucketResult>")))
    };
    server.state().requests.clear();
    server.fail(move |_, _| page(7));
    let error = remote.sync().unwrap_err().to_string();
    assert!(error.contains("repeats a continuation token"), "{error}");
    assert_eq!(server.state().requests.len(), 2);
    let mut count = 0;
    server.fail(move |_, _| {
        count += 1;
        page(count)
    });
    let error = remote.sync().unwrap_err().to_string();
    assert!(error.contains("more than 1000 pages"), "{error}");
    assert_eq!(server.state().requests.len(), 1002);
    assert_eq!(files(remote.folder()), expected(&[("a.kg", "one")]));
}

#[test]
fn the_limit_of_bytes_includes_files_that_are_gone() {
    let server = Server::new(&[("m/a", "aaaaaa"), ("m/b", "b")]);
    let cache = tempfile::tempdir().unwrap();
    let mut remote = bucket(&server, &cache, Options { bytes_max: 10, ..options() });
    assert_eq!(remote.sync().unwrap().bytes, 7);
    // The old file and the new one fit: the old one stays until the new one is there.
    server.state().objects.remove("m/a");
    server.set("m/c", "ccc");
    server.fail(|request, _| request.path.ends_with("/c").then(|| Reply::of(403, "")));
    for _ in 0..2 {
        assert!(matches!(remote.sync().unwrap_err(), RemoteError::Refused { status: 403, .. }));
        assert_eq!(files(remote.folder()), expected(&[("a", "aaaaaa"), ("b", "b")]));
    }
    // They do not fit: the old one is removed first, also if another file is refused.
    server.set("m/d", "ddd");
    assert!(matches!(remote.sync().unwrap_err(), RemoteError::Refused { status: 403, .. }));
    assert!(!files(remote.folder()).contains_key("a"));
    server.fail(|_, _| None);
    remote.sync().unwrap();
    assert_eq!(files(remote.folder()), expected(&[("b", "b"), ("c", "ccc"), ("d", "ddd")]));
    // Files that become smaller are fetched before those that become larger.
    server.set("m/b", "bbbbb");
    server.set("m/d", "d");
    let before = server.gets().len();
    remote.sync().unwrap();
    let gets: Vec<String> = server.gets()[before..].iter().map(|request| request.path.clone()).collect();
    assert_eq!(gets, ["/models/m/d", "/models/m/b"]);
}

#[test]
fn variables_of_the_environment_set_the_key() {
    let variable = |name: &str| (name != "AWS_SESSION_TOKEN").then(|| format!("{name}!"));
    let of_s3 = Options::default().with_environment("s3://models", variable);
    assert_eq!((of_s3.region.as_str(), of_s3.endpoint.as_deref()), ("AWS_REGION!", Some("AWS_ENDPOINT_URL!")));
    let of_google = Options::default().with_environment("gs://models", variable);
    assert!(of_google.credentials.is_some() && of_google.endpoint.is_none());
    assert!(Options::default().with_environment("s3://models", |_| None).credentials.is_none());
}
