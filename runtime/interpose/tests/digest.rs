//! The digest by which NVIDIA's runtime recognizes the driver. The crate is a library for C programs,
//! so the test has the file as a module.

#[path = "../src/private/digest.rs"]
mod digest;

use digest::{digest, md2};

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn digests_of_the_rfc() {
    let digests = ["", "a", "abc", "message digest"].map(|text| hex(md2(text.as_bytes())));
    let wanted = [
        "8350e5a3e24c153df2275c9f80692773",
        "32ec01ec4a6dac72c0ab96fb34c0b5d1",
        "da853b0d3f88d99b30283a69e6ded6bb",
        "ab4f496bfb2a530b219ff33031fe06b0",
    ];
    assert_eq!(digests, wanted);
}

#[test]
fn a_digest_depends_on_the_key() {
    let message: Vec<u8> = (0..68).collect();
    assert_eq!(hex(digest(&message)), "35bc0aee46fcd2538758a63727e08d11");
}
