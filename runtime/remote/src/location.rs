//! Addresses of repositories.

use crate::Options;
use crate::error::RemoteError;

/// Address of Google Cloud Storage, which has the interface of S3.
const GOOGLE: &str = "https://storage.googleapis.com";

const NO_TLS: &str = "http:// is allowed for loopback addresses only; use https://";

/// Name of the listing of a folder of a web server.
pub(crate) const MANIFEST: &str = "repository.json";

/// Whether a repository is a URL, and not a local folder: it begins with `s3://`, `gs://`,
/// `https://`, or another scheme.
pub fn is_remote(repository: &str) -> bool {
    repository.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// Where a repository is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A bucket with the interface of S3.
    Bucket {
        /// As in `https://s3.us-east-1.amazonaws.com`.
        endpoint: String,
        bucket: String,
        /// Names of objects begin with it: empty, or with a slash at its end.
        prefix: String,
        /// The region that signatures name.
        region: String,
        /// Whether the server is Google's, which does not support the checksum headers of S3.
        is_google: bool,
    },
    /// A folder of a web server that has a listing.
    Folder {
        /// Without a slash at its end.
        base: String,
    },
}

impl Location {
    /// Reads an address: `s3://BUCKET/PREFIX`, `s3://https://HOST:PORT/BUCKET/PREFIX` as Triton has
    /// it, `gs://BUCKET/PREFIX`, or `https://HOST/PATH`.
    pub(crate) fn read(url: &str, options: &Options) -> Result<Location, RemoteError> {
        let wrong = |why: &str| RemoteError::Address(format!("{url:?} is not the address of a repository: {why}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let is_invalid = |letter: char| letter.is_whitespace() || letter.is_control() || "?#".contains(letter);
        if let Some(letter) = url.chars().find(|letter| is_invalid(*letter)) {
            return Err(wrong(&format!("it must not contain {letter:?}")));
        }
        match scheme {
            "s3" => {
                let is_address = ["http://", "https://"].iter().any(|scheme| rest.starts_with(scheme));
                let (endpoint, path) = match (is_address, &options.endpoint) {
                    (true, _) => split_host(rest).ok_or_else(|| wrong("it has no bucket"))?,
                    (false, Some(endpoint)) => (endpoint.trim_end_matches('/').to_owned(), rest),
                    (false, None) => (format!("https://s3.{}.amazonaws.com", options.region), rest),
                };
                check_endpoint(&endpoint).map_err(|why| wrong(&why))?;
                bucket(&endpoint, path, &options.region, false).ok_or_else(|| wrong("it has no bucket"))
            }
            "gs" => {
                let endpoint = options.endpoint.as_deref().unwrap_or(GOOGLE).trim_end_matches('/');
                check_endpoint(endpoint).map_err(|why| wrong(&why))?;
                bucket(endpoint, rest, "auto", true).ok_or_else(|| wrong("it has no bucket"))
            }
            "https" => Ok(Location::Folder { base: url.trim_end_matches('/').into() }),
            // Without TLS, nothing authenticates the listing with the digests.
            "http" if is_loopback(rest) => Ok(Location::Folder { base: url.trim_end_matches('/').into() }),
            "http" => Err(wrong(NO_TLS)),
            _ => Err(wrong("it must begin with s3://, gs:// or https://")),
        }
    }
}

/// `https://HOST/PATH` as `https://HOST` and `PATH`.
fn split_host(url: &str) -> Option<(String, &str)> {
    let begin = url.find("://")? + 3;
    let (host, path) = url[begin..].split_once('/')?;
    (!host.is_empty()).then(|| (format!("{}{host}", &url[..begin]), path))
}

/// Refuses the address of a server without TLS, except on loopback: nothing else authenticates what
/// the server sends.
fn check_endpoint(endpoint: &str) -> Result<(), String> {
    match endpoint.split_once("://") {
        Some(("https", _)) => Ok(()),
        Some(("http", rest)) if is_loopback(rest) => Ok(()),
        Some(("http", _)) => Err(NO_TLS.into()),
        _ => Err(format!("the address of its server, {endpoint:?}, must begin with https://")),
    }
}

fn bucket(endpoint: &str, path: &str, region: &str, is_google: bool) -> Option<Location> {
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !(1..=255).contains(&bucket.len()) || !bucket.bytes().all(is_name) || bucket.bytes().all(|byte| byte == b'.') {
        return None;
    }
    let prefix = prefix.trim_matches('/');
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    let (endpoint, bucket) = (endpoint.into(), bucket.into());
    Some(Location::Bucket { endpoint, bucket, prefix, region: region.into(), is_google })
}

fn is_loopback(rest: &str) -> bool {
    let authority = rest.split('/').next().unwrap_or_default();
    let address: Option<std::net::SocketAddr> = authority.parse().ok();
    let host: Option<std::net::IpAddr> = authority.trim_matches(['[', ']']).parse().ok();
    address.map(|address| address.ip()).or(host).is_some_and(|host| host.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Location, RemoteError> {
        Location::read(url, &Options::default())
    }

    fn parts(url: &str) -> (String, String, String, String) {
        match read(url).unwrap() {
            Location::Bucket { endpoint, bucket, prefix, region, .. } => (endpoint, bucket, prefix, region),
            Location::Folder { base } => panic!("{base} is no bucket"),
        }
    }

    #[test]
    fn addresses_have_the_forms_of_triton() {
        let part = |all: (&str, &str, &str, &str)| (all.0.into(), all.1.into(), all.2.into(), all.3.into());
        let amazon = "https://s3.us-east-1.amazonaws.com";
        assert_eq!(parts("s3://models/a/b/"), part((amazon, "models", "a/b/", "us-east-1")));
        assert_eq!(parts("s3://models"), part((amazon, "models", "", "us-east-1")));
        let own = part(("https://minio:9000", "models", "a/", "us-east-1"));
        assert_eq!(parts("s3://https://minio:9000/models/a"), own);
        assert_eq!(parts("gs://models/a"), part((GOOGLE, "models", "a/", "auto")));
        assert_eq!(read("https://host/models/").unwrap(), Location::Folder { base: "https://host/models".into() });
        assert!(read("http://127.0.0.1:8000/models").is_ok() && read("http://[::1]:8000/").is_ok());
    }

    #[test]
    fn a_region_does_not_make_a_server_that_of_google() {
        let auto = Options { region: "auto".into(), ..Options::default() };
        let is_google = |url| match Location::read(url, &auto).unwrap() {
            Location::Bucket { is_google, region, .. } => (is_google, region),
            Location::Folder { base } => panic!("{base} is no bucket"),
        };
        assert_eq!(is_google("s3://https://account.r2.cloudflarestorage.com/models"), (false, "auto".into()));
        assert_eq!(is_google("gs://models"), (true, "auto".into()));
    }

    #[test]
    fn a_server_without_tls_is_on_loopback() {
        let at = |url: &str, endpoint: &str| {
            Location::read(url, &Options { endpoint: Some(endpoint.into()), ..Options::default() })
        };
        for (url, endpoint) in [("s3://models", "http://127.0.0.1:9000"), ("gs://models", "https://host/")] {
            assert!(at(url, endpoint).is_ok(), "{url} {endpoint}");
        }
        for (url, endpoint, says) in [
            ("s3://models", "http://minio:9000", "loopback"),
            ("gs://models", "http://10.0.0.1", "loopback"),
            ("s3://models", "minio:9000", "must begin with https://"),
        ] {
            let error = at(url, endpoint).unwrap_err().to_string();
            assert!(error.contains(says), "{url} {endpoint}: {error}");
        }
        assert!(read("s3://http://127.0.0.1:9000/models").is_ok());
    }

    #[test]
    fn impossible_addresses_are_refused_with_the_reason() {
        for (url, says) in [
            ("models", "no scheme"),
            ("s3://", "no bucket"),
            ("s3://../x", "no bucket"),
            ("s3://a b/x", "must not contain ' '"),
            ("s3://https://host", "no bucket"),
            ("s3://http://minio:9000/models", "loopback"),
            ("http://models.example/a", "loopback"),
            ("https://host/a?b", "must not contain '?'"),
            ("as://account/container", "s3://, gs:// or https://"),
            ("file:///etc", "s3://, gs:// or https://"),
        ] {
            let error = read(url).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
        assert!(is_remote("as://x") && !is_remote("models/") && !is_remote("/a/b") && !is_remote("://x"));
    }
}
