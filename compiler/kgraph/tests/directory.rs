//! Directories of hostile bundles: what an archive claims takes no memory, and is refused.

use atoll_kgraph::limits::{DIRECTORY_BYTES_MAX, JSON_BYTES_MAX, MEMBERS_MAX};
use atoll_kgraph::{Bundle, BundleError};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The size of the sparse files.
const TEBIBYTE: u64 = 1 << 40;

/// The header of a stored member in the directory; `at` is the offset of its local header.
fn header(name: &str, bytes: u32, at: u32) -> Vec<u8> {
    let mut header = b"PK\x01\x02".to_vec();
    header.extend([0; 16]);
    header.extend([bytes, bytes].map(u32::to_le_bytes).concat());
    header.extend((name.len() as u16).to_le_bytes());
    header.extend([0; 12]);
    header.extend(at.to_le_bytes());
    header.extend(name.as_bytes());
    header
}

/// An end record.
fn end(members: u16, bytes: u32, start: u32) -> Vec<u8> {
    let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
    end.extend([members, members].map(u16::to_le_bytes).concat());
    end.extend([bytes, start].map(u32::to_le_bytes).concat());
    end.extend([0; 2]);
    end
}

/// A zip64 record, its locator and an end record that refers to them; `at` is their offset.
fn end_64(members: u64, bytes: u64, start: u64, at: u64) -> Vec<u8> {
    let mut record = b"PK\x06\x06".to_vec();
    record.extend([0; 20]);
    record.extend([members, members, bytes, start].map(u64::to_le_bytes).concat());
    record.extend(b"PK\x06\x07\0\0\0\0");
    record.extend(at.to_le_bytes());
    record.extend([0; 4]);
    record.extend(end(u16::MAX, u32::MAX, u32::MAX));
    record
}

/// An archive with members without content whose local headers are at these offsets.
fn archive(headers: &[Vec<u8>], local: &[u32]) -> Vec<u8> {
    let start = 1024;
    let mut bytes = vec![0; start];
    for at in local {
        bytes[*at as usize..][..4].copy_from_slice(b"PK\x03\x04");
    }
    let directory = headers.concat();
    bytes.extend(&directory);
    bytes.extend(end(headers.len() as u16, directory.len() as u32, start as u32));
    bytes
}

fn refusal(file: &File) -> String {
    let error = Bundle::outline(file, Path::new("hostile.kg")).unwrap_err();
    assert!(matches!(error, BundleError::Corrupt { .. }), "{error}");
    error.to_string()
}

/// A file of [`TEBIBYTE`] without content but these bytes at its end.
fn sparse(folder: &Path, tail: &[u8]) -> File {
    let path = folder.join("sparse.kg");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.set_len(TEBIBYTE).unwrap();
    file.write_all_at(tail, TEBIBYTE - tail.len() as u64).unwrap();
    file
}

/// With a reader that searches the whole file, or allocates what the archive claims, this test would
/// need a terabyte of memory.
#[test]
fn the_size_of_a_sparse_file_and_the_claims_in_it_take_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = sparse(folder.path(), b"");
    assert!(refusal(&file).contains("not a zip archive"));
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    let at = |tail: usize| TEBIBYTE - tail as u64;
    let tail_bytes = end_64(0, 0, 0, 0).len();
    for (members, bytes, start, expected) in [
        (1 << 28, 1 << 34, 0, "268435456 members, at most 512 are allowed".to_owned()),
        (u64::MAX, 1 << 34, 0, format!("{} members", u64::MAX)),
        (MEMBERS_MAX as u64 + 1, 0, 0, format!("{} members", MEMBERS_MAX + 1)),
        (1, 1 << 34, 0, format!("its directory has {} bytes, at most {DIRECTORY_BYTES_MAX}", 1_u64 << 34)),
        (1, 46, u64::MAX, "its directory extends past the end record".to_owned()),
        (1, 46, at(tail_bytes) - 45, "its directory extends past the end record".to_owned()),
        (1, 46, 0, "its directory is damaged".to_owned()),
        (MEMBERS_MAX as u64, DIRECTORY_BYTES_MAX, 0, "its directory is damaged".to_owned()),
        (1, 45, 0, "its directory".to_owned()),
        (0, 0, 0, "manifest.json is missing".to_owned()),
    ] {
        let file = sparse(folder.path(), &end_64(members, bytes, start, at(tail_bytes)));
        let message = refusal(&file);
        assert!(message.contains(&expected), "{expected}: {message}");
    }
    for record in [u64::MAX, at(tail_bytes) + 1, 0] {
        let message = refusal(&sparse(folder.path(), &end_64(1, 46, 0, record)));
        assert!(message.contains("zip64 record is missing"), "{message}");
    }
}

/// A member that is within the file, and has more bytes than a reader may take memory for.
#[test]
fn a_large_manifest_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = JSON_BYTES_MAX as u32 + 1;
    let directory = header("manifest.json", bytes, 0);
    let start = u32::MAX - 1;
    let file = File::options().read(true).write(true).create_new(true).open(folder.path().join("a.kg")).unwrap();
    file.write_all_at(b"PK\x03\x04", 0).unwrap();
    let tail = [directory.clone(), end(1, directory.len() as u32, start)].concat();
    file.write_all_at(&tail, start.into()).unwrap();
    let message = refusal(&file);
    assert!(message.contains(&format!("manifest.json: it has {bytes} bytes, at most {JSON_BYTES_MAX}")), "{message}");
}

#[test]
fn members_must_be_stored_once_apart_from_each_other_and_within_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |bytes: &[u8], expected: &str| {
        let path = folder.path().join("a.kg");
        std::fs::write(&path, bytes).unwrap();
        let message = refusal(&File::open(&path).unwrap());
        assert!(message.contains(expected), "{expected}: {message}");
        // The same directory is read when a mapped bundle is opened.
        let opened = Bundle::open(&path).unwrap_err().to_string();
        assert!(opened.contains(expected), "{expected}: {opened}");
    };
    let one = header("a", 8, 0);
    refused(&archive(&[one.clone(), header("b", 8, 38)], &[0, 38]), "manifest.json is missing");
    refused(&archive(&[one.clone(), header("b", 8, 37 - 30)], &[0, 7]), "members a and b overlap");
    refused(&archive(&[header("b", 8, 7), one.clone()], &[0, 7]), "members a and b overlap");
    refused(&archive(&[one.clone(), header("a", 8, 100)], &[0, 100]), "member a is listed twice");
    refused(&archive(std::slice::from_ref(&one), &[]), "the header of member a is damaged");
    let all = archive(std::slice::from_ref(&one), &[0]).len() as u32;
    refused(&archive(&[header("a", all - 30, 0)], &[0]), "manifest.json is missing");
    refused(&archive(&[header("a", all - 29, 0)], &[0]), "member a extends past the end of the file");
    refused(&archive(&[header("a", 0, all - 29)], &[0]), "member a extends past the end of the file");
    let changed = |at: usize, byte: u8| {
        let mut header = one.clone();
        header[at] = byte;
        archive(&[header], &[0])
    };
    refused(&changed(8, 1), "member a is encrypted");
    refused(&changed(10, 8), "member a is compressed");
    refused(&changed(20, 9), "member a is compressed");
    refused(&changed(46, 0xff), "is not UTF-8");
    // The name is longer than the rest of the directory.
    refused(&changed(28, 2), "its directory ends early");
    // A number is said to be in an extra field, which is missing.
    refused(&archive(&[header("a", u32::MAX, 0)], &[0]), "its directory ends early");
}

#[test]
fn a_comment_of_any_length_may_follow_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.kg");
    let commented = |length: usize| {
        let mut bytes = archive(&[header("a", 8, 0)], &[0]);
        let at = bytes.len() - 2;
        bytes[at..].copy_from_slice(&(length as u16).to_le_bytes());
        // The comment contains the beginning of an end record.
        bytes.extend(b"PK\x05\x06".iter().cycle().take(length));
        std::fs::write(&path, bytes).unwrap();
        refusal(&File::open(&path).unwrap())
    };
    for length in [0, 1, 4, 22, 65_535] {
        let message = commented(length);
        assert!(message.contains("manifest.json is missing"), "{length}: {message}");
    }
}
