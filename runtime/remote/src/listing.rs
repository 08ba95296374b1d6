//! Listings: the objects of a repository with their sizes and versions.

use serde::Deserialize;

/// Most objects of a repository.
pub(crate) const OBJECTS_MAX: usize = 100_000;

/// Longest name of an object in bytes, as in S3.
const NAME_BYTES_MAX: usize = 1024;

/// An object of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Its path in the folder, with slashes.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// The version that the listing states, an ETag or a digest. It changes with the content.
    pub(crate) version: String,
    /// SHA-256 of its bytes in hexadecimal digits, if the listing states it.
    pub(crate) digest: Option<String>,
}

/// A page of a listing of a bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Object>,
    /// The continuation token of the next page, if there is one.
    pub(crate) next: Option<String>,
}

#[derive(Deserialize)]
struct Manifest {
    files: Vec<ManifestFile>,
}

#[derive(Deserialize)]
struct ManifestFile {
    path: String,
    bytes: u64,
    sha256: String,
}

/// Reads the listing of a web server.
pub(crate) fn manifest(text: &[u8]) -> Result<Vec<Object>, String> {
    let Manifest { files } = serde_json::from_slice(text).map_err(|error| format!("it is no listing: {error}"))?;
    let object = |ManifestFile { path, bytes, sha256 }: ManifestFile| {
        let is_digest = sha256.len() == 64 && sha256.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !is_digest {
            return Err(format!("`{}` has the digest `{}`, which is not SHA-256", shown(&path), shown(&sha256)));
        }
        let digest = sha256.to_ascii_lowercase();
        Ok(Object { path: checked(&path)?, bytes, version: digest.clone(), digest: Some(digest) })
    };
    files.into_iter().map(object).collect()
}

/// Reads a page of the listing of a bucket, `ListObjectsV2`. Names are percent-encoded if the server
/// says so in `EncodingType`. Leaves out names that end with a slash, which stand for folders.
pub(crate) fn page(text: &str, prefix: &str) -> Result<Page, String> {
    let body = element(text, "ListBucketResult").ok_or("it is no listing of a bucket")?;
    let is_encoded = match element(body, "EncodingType") {
        Some("url") => true,
        None | Some("") => false,
        Some(other) => return Err(format!("its names have the unknown encoding `{}`", shown(other))),
    };
    let mut page = Page::default();
    let mut rest = body;
    while let Some(begin) = rest.find("<Contents>") {
        let block = &rest[begin..];
        let contents = element(block, "Contents").ok_or("it ends inside an object")?;
        rest = &block["<Contents>".len() + contents.len() + "</Contents>".len()..];
        let field = |name: &str| element(contents, name).ok_or(format!("an object has no {name}"));
        let name = plain(field("Key")?)?;
        let name = if is_encoded { decoded(&name)? } else { name };
        let bytes = field("Size")?.parse().map_err(|_| format!("`{}` has no size", shown(&name)))?;
        let path = name.strip_prefix(prefix).ok_or_else(|| format!("`{}` is not in the repository", shown(&name)))?;
        if path.is_empty() || path.ends_with('/') {
            continue;
        }
        page.objects.push(Object { path: checked(path)?, bytes, version: plain(field("ETag")?)?, digest: None });
    }
    if element(body, "IsTruncated") == Some("true") {
        let next = element(body, "NextContinuationToken").ok_or("it goes on, but does not say where")?;
        page.next = Some(plain(next)?);
    }
    Ok(page)
}

/// The contents of the first element of this name, which may have no attribute but a namespace.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = text;
    loop {
        let begin = rest.find(&format!("<{name}"))? + 1 + name.len();
        rest = &rest[begin..];
        // The name goes on, as in <KeyCount>.
        if !rest.starts_with(['>', ' ', '\n', '\t', '\r']) {
            continue;
        }
        let contents = &rest[rest.find('>')? + 1..];
        return Some(&contents[..contents.find(&format!("</{name}>"))?]);
    }
}

/// Replaces the escapes of XML text by their characters.
fn plain(text: &str) -> Result<String, String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find('&') {
        plain.push_str(&rest[..begin]);
        let end = rest[begin..].find(';').ok_or("it has an escape without an end")? + begin;
        let character = match &rest[begin + 1..end] {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            other => number(other).ok_or_else(|| format!("it has an unknown escape `&{};`", shown(other)))?,
        };
        plain.push(character);
        rest = &rest[end + 1..];
    }
    plain.push_str(rest);
    Ok(plain)
}

/// The character of an escape such as `#34` or `#x22`.
fn number(escape: &str) -> Option<char> {
    let digits = escape.strip_prefix('#')?;
    let number = match digits.strip_prefix('x') {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    char::from_u32(number.ok()?)
}

/// Decodes a percent-encoded name, in which a plus is a space.
fn decoded(name: &str) -> Result<String, String> {
    let name = name.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&name).decode_utf8();
    decoded.map(Into::into).map_err(|_| format!("`{}` is not UTF-8", shown(&name)))
}

/// Checks that a path stays in its folder.
fn checked(path: &str) -> Result<String, String> {
    let is_wrong = |part: &str| matches!(part, "" | "." | "..") || part.contains(['\\', '\0']);
    if path.len() > NAME_BYTES_MAX || path.split('/').any(is_wrong) || path.chars().any(char::is_control) {
        return Err(format!("`{}` is not the name of a file of a repository", shown(path)));
    }
    Ok(path.into())
}

/// The beginning of an untrusted text, escaped for a message.
fn shown(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>models</Name><KeyCount>3</KeyCount>
<EncodingType>url</EncodingType>
<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b=</NextContinuationToken>
<Contents><Key>m/</Key><Size>0</Size><ETag>"0"</ETag></Contents>
<Contents><Key>m/a+b/%C3%A9%2B.onnx</Key><LastModified>x</LastModified>
<ETag>&quot;1f&#34;</ETag><Size>12</Size></Contents>
</ListBucketResult>"#;

    #[test]
    fn a_page_has_objects_below_the_prefix_and_says_how_it_goes_on() {
        let page = page(XML, "m/").unwrap();
        let object = Object { path: "a b/é+.onnx".into(), bytes: 12, version: "\"1f\"".into(), digest: None };
        assert_eq!(page, Page { objects: vec![object], next: Some("a&b=".into()) });
    }

    #[test]
    fn names_are_decoded_only_if_the_server_has_encoded_them() {
        let plain = XML.replace("<EncodingType>url</EncodingType>", "");
        assert_eq!(page(&plain, "m/").unwrap().objects[0].path, "a+b/%C3%A9%2B.onnx");
    }

    #[test]
    fn impossible_listings_are_refused() {
        for (from, to, says) in [
            ("ListBucketResult", "Error", "no listing"),
            ("<Size>12", "<Size>-1", "has no size"),
            ("<Size>12</Size>", "", "no Size"),
            ("</Contents>\n</List", "</List", "ends inside an object"),
            ("<Key>m/a", "<Key>other/a", "not in the repository"),
            ("a+b/", "../", "not the name of a file"),
            ("a+b/", "%2e%2e/", "not the name of a file"),
            ("a+b/", "/", "not the name of a file"),
            ("a+b/", "%00/", "not the name of a file"),
            ("a+b/", "%ff/", "not UTF-8"),
            ("&quot;", "&what;", "unknown escape"),
            ("<EncodingType>url", "<EncodingType>base64", "unknown encoding `base64`"),
            ("<NextContinuationToken>", "<NextContinuation>", "does not say where"),
        ] {
            let wrong = XML.replace(from, to);
            assert_ne!(wrong, XML, "{from}");
            let error = page(&wrong, "m/").unwrap_err();
            assert!(error.contains(says), "{from} to {to}: {error}");
        }
    }

    #[test]
    fn a_manifest_states_digests() {
        let digest = "AB".repeat(32);
        let text = |path: &str, digest: &str| {
            serde_json::json!({"files": [{"path": path, "bytes": 3, "sha256": digest}]}).to_string()
        };
        let objects = manifest(text("m/1/model.onnx", &digest).as_bytes()).unwrap();
        assert_eq!(objects[0].digest.as_deref(), Some("ab".repeat(32).as_str()));
        for (path, digest, says) in [
            ("/etc/passwd", digest.as_str(), "not the name"),
            ("a/../../b", &digest, "not the name"),
            ("a", "ab", "not SHA-256"),
        ] {
            assert!(manifest(text(path, digest).as_bytes()).unwrap_err().contains(says), "{path}");
        }
        assert!(manifest(b"<html>").unwrap_err().contains("no listing"));
    }
}
