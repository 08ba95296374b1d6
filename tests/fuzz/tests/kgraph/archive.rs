//! Fuzz targets of the archive of a bundle: any file is refused or opened, and what was opened can be
//! used.

use super::{GRAPH, TARGET, WEIGHTS_BYTES, mutated};
use atoll_kgraph::{Bundle, BundleContents, TargetContents, decode_code, encode_code, write_bundle};
use atoll_sealed::Digest;
use bolero::check;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes at the end of the file that contain the directory, at least.
const DIRECTORY_BYTES: usize = 2048;

/// Numbers at and beyond the limits.
const NUMBERS: [u64; 10] = [0, 1, 0xffff, 0x1_0000, 0xffff_fffe, 0xffff_ffff, 1 << 32, 1 << 40, u64::MAX - 1, u64::MAX];

fn target() -> TargetContents {
    let image = serde_json::from_str(TARGET).expect("a target");
    TargetContents { image, code: vec![7; 64], ptx: Some("// ptx".into()), source: Some("// source".into()) }
}

/// A path that no other test uses.
fn unused_path() -> PathBuf {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let name = format!("atoll-fuzz-{}-{}.kg", std::process::id(), LAST.fetch_add(1, Relaxed));
    std::env::temp_dir().join(name)
}

/// A valid bundle.
fn seed() -> Vec<u8> {
    let path = unused_path();
    let graph = serde_json::from_str(GRAPH).expect("a graph");
    let weights = [7; WEIGHTS_BYTES as usize];
    let contents = BundleContents {
        producer: "fuzz".into(),
        graph: &graph,
        weights: vec![(0, &weights)],
        targets: vec![target()],
    };
    write_bundle(&path, &contents).expect("a bundle");
    let bytes = std::fs::read(&path).expect("its bytes");
    std::fs::remove_file(&path).expect("its file");
    bytes
}

/// A file for contents, one after the other.
struct Scratch(File);

impl Scratch {
    fn new() -> Scratch {
        let path = unused_path();
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("its name");
        Scratch(file)
    }

    /// Opens a bundle with these bytes, and uses all of it. Returns whether it was accepted.
    fn exercise(&self, bytes: &[u8]) -> bool {
        let written = self.0.set_len(0).and_then(|()| self.0.write_all_at(bytes, 0));
        written.expect("room on the disk");
        let path = Path::new("fuzz.kg");
        let outline = Bundle::outline(&self.0, path);
        let Ok(bundle) = Bundle::of_file(&self.0, path) else { return false };
        let outline = outline.expect("the outline of a valid bundle");
        assert_eq!(outline.name, bundle.graph().name);
        assert!(bundle.constants().len() as u64 <= outline.constants, "equal constants are one");
        for name in bundle.target_names() {
            let _ = (bundle.code(name), bundle.ptx(name), bundle.source(name));
        }
        true
    }
}

/// A file with some bytes replaced, half of them near its directory, and its end cut off.
fn changed(seed: &[u8], anywhere: &[(u16, u8)], near_end: &[(u16, u8)], cut: Option<u16>) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    let length = bytes.len();
    for (at, to) in anywhere {
        bytes[usize::from(*at) % length] = *to;
    }
    for (at, to) in near_end {
        bytes[length - 1 - usize::from(*at) % DIRECTORY_BYTES] = *to;
    }
    bytes.truncate(length - cut.map_or(0, |cut| usize::from(cut) % length));
    bytes
}

#[test]
fn the_seed_is_accepted() {
    assert!(Scratch::new().exercise(&seed()));
}

#[test]
fn any_archive() {
    let scratch = Scratch::new();
    check!().for_each(|bytes: &[u8]| {
        scratch.exercise(bytes);
        let _ = decode_code(bytes);
    });
}

#[test]
fn changed_archives() {
    let (scratch, seed) = (Scratch::new(), seed());
    type Changes = (Vec<(u16, u8)>, Vec<(u16, u8)>, Option<u16>);
    check!().with_type::<Changes>().for_each(|(anywhere, near_end, cut)| {
        scratch.exercise(&changed(&seed, anywhere, near_end, *cut));
    });
}

/// Numbers of the directory are replaced by large ones.
#[test]
fn changed_directories() {
    let (scratch, seed) = (Scratch::new(), seed());
    check!().with_type::<Vec<(u16, u8, u8)>>().for_each(|numbers| {
        let mut bytes = seed.clone();
        for (at, which, width) in numbers {
            let number = NUMBERS[usize::from(*which) % NUMBERS.len()].to_le_bytes();
            let width = [2, 4, 8][usize::from(*width) % 3];
            let at = bytes.len() - 8 - usize::from(*at) % DIRECTORY_BYTES;
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        scratch.exercise(&bytes);
    });
}

/// Replaces a text and its digest, which both are in the bundle.
fn replace(bundle: &mut [u8], text: &[u8], by: &[u8]) -> io::Result<()> {
    let (old, new) = (Digest::of(text).to_string(), Digest::of(by).to_string());
    for (old, new) in [(text, by), (old.as_bytes(), new.as_bytes())] {
        let at = bundle.windows(old.len()).position(|window| window == old);
        let at = at.ok_or_else(|| io::Error::other("the text is not in the bundle"))?;
        bundle[at..at + new.len()].copy_from_slice(new);
    }
    Ok(())
}

/// Graph and target are mutated, and the manifest has their digests.
#[test]
fn changed_members() {
    let (scratch, seed) = (Scratch::new(), seed());
    let graph = |text: &str| serde_json::from_str::<atoll_kgraph::KernelGraph>(text).expect("a graph");
    let graph = serde_json::to_string(&graph(GRAPH)).expect("its text");
    check!().with_type::<Vec<(u16, u8)>>().for_each(|changes| {
        let mut bytes = seed.clone();
        replace(&mut bytes, graph.as_bytes(), &mutated(&graph, changes)).expect("the graph");
        scratch.exercise(&bytes);
    });
}

#[test]
fn changed_code() {
    let code = encode_code(&[target()]).expect("code");
    check!().with_type::<(Vec<(u16, u8)>, Option<u16>)>().for_each(|(changes, cut)| {
        if let Ok(targets) = decode_code(&changed(&code, changes, &[], *cut)) {
            assert!(targets.iter().all(|target| target.source.is_none()));
        }
    });
}
