//! Writing a bundle.

use super::BundleError;
use super::contents::TargetContents;
use super::manifest::{self, GRAPH, MANIFEST, Manifest, Member, WEIGHTS, WEIGHTS_TENSOR};
use crate::graph::{FORMAT_VERSION, KernelGraph};
use crate::hexadecimal;
use crate::pieces::Pieces;
use crate::target::TargetImage;
use crate::validate;
use flate2::{Compression, GzBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Alignment of members in the file: one page, so that weights and code can be mapped in place.
const MEMBER_ALIGN: u16 = 4096;

/// The content of a bundle to be written.
#[derive(Debug)]
pub struct BundleContents<'a> {
    /// Name and version of the compiler.
    pub producer: String,
    /// The target-independent graph.
    pub graph: &'a KernelGraph,
    /// Constants as (offset, bytes), ascending and disjoint; gaps are filled with zeros.
    pub weights: Vec<(u64, &'a [u8])>,
    /// Targets with their code.
    pub targets: Vec<TargetContents>,
}

/// Writes a bundle to a temporary file in the folder of `path` and renames it when complete.
/// Returns the digest of the bundle.
pub fn write_bundle(path: &Path, contents: &BundleContents<'_>) -> Result<String, BundleError> {
    let invalid = |source| BundleError::Invalid { path: path.into(), source };
    let weights_bytes = contents.weights.last().map_or(0, |(offset, bytes)| offset + bytes.len() as u64);
    validate::graph(contents.graph, weights_bytes).map_err(invalid)?;
    validate::format(FORMAT_VERSION, contents.graph.format).map_err(invalid)?;
    for target in &contents.targets {
        validate::target(contents.graph, &target.image, weights_bytes).map_err(invalid)?;
    }
    let io_error = |source| BundleError::Io { path: path.into(), source };
    let temporary = path.with_extension(format!("kg.{}.partial", std::process::id()));
    let written = write_file(&temporary, contents, weights_bytes)
        .and_then(|digest| std::fs::rename(&temporary, path).map(|()| digest));
    written.inspect_err(|_| drop(std::fs::remove_file(&temporary))).map_err(io_error)
}

fn write_file(path: &Path, contents: &BundleContents<'_>, weights_bytes: u64) -> io::Result<String> {
    let mut writer =
        MemberWriter { zip: ZipWriter::new(io::BufWriter::new(File::create(path)?)), members: BTreeMap::new() };
    let graph = json(GRAPH, contents.graph)?;
    writer.member(GRAPH, |out| out.write_all(&graph))?;
    let header = weights_header(weights_bytes);
    writer.member(WEIGHTS, |out| write_weights(out, &header, &contents.weights))?;
    let member = writer.members.get_mut(WEIGHTS).expect("the member was written above");
    member.pieces = Some(Pieces::of(&header, &contents.weights));
    for target in &contents.targets {
        let folder = format!("targets/{}", target.image.name);
        let source = target.source.as_ref().map(|text| writer.source(text)).transpose()?;
        let image = TargetImage { source, ..target.image.clone() };
        let name = format!("{folder}/target.json");
        let image = json(&name, &image)?;
        writer.member(&name, |out| out.write_all(&image))?;
        writer.member(&format!("{folder}/code"), |out| out.write_all(&target.code))?;
        if let Some(ptx) = &target.ptx {
            writer.member(&format!("{folder}/kernels.ptx"), |out| out.write_all(ptx.as_bytes()))?;
        }
    }
    let members = std::mem::take(&mut writer.members);
    let manifest = Manifest { format: FORMAT_VERSION, producer: contents.producer.clone(), members };
    let manifest = serde_json::to_vec_pretty(&manifest)?;
    writer.member(MANIFEST, |out| out.write_all(&manifest))?;
    let mut file = writer.zip.finish().map_err(io::Error::from)?.into_inner().map_err(|e| e.into_error())?;
    file.flush()?;
    file.sync_all()?;
    Ok(hexadecimal::text(&Sha256::digest(&manifest)))
}

/// Serializes a member and checks that readers accept it.
fn json<T: Serialize + DeserializeOwned>(name: &str, value: &T) -> io::Result<Vec<u8>> {
    let refused =
        |reason| io::Error::new(io::ErrorKind::InvalidInput, format!("{name} could not be read again: {reason}"));
    super::json::print(value).map_err(refused)
}

/// The bytes before the weights: the header size, and a safetensors header padded so that the data
/// starts at a multiple of 256 bytes.
fn weights_header(bytes: u64) -> Vec<u8> {
    let mut header =
        format!("{{\"{WEIGHTS_TENSOR}\":{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[0,{bytes}]}}}}");
    while !(header.len() + 8).is_multiple_of(256) {
        header.push(' ');
    }
    [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
}

/// Writes the header, then the constants and the gaps between them.
fn write_weights(out: &mut dyn Write, header: &[u8], weights: &[(u64, &[u8])]) -> io::Result<()> {
    out.write_all(header)?;
    let mut at = 0;
    for (offset, content) in weights {
        let gap =
            offset.checked_sub(at).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "weights overlap"))?;
        io::copy(&mut io::Read::take(io::repeat(0), gap), out)?;
        out.write_all(content)?;
        at = offset + content.len() as u64;
    }
    Ok(())
}

/// Writes members and records their sizes and digests.
struct MemberWriter<W: Write + Seek> {
    zip: ZipWriter<W>,
    members: BTreeMap<String, Member>,
}

impl<W: Write + Seek> MemberWriter<W> {
    /// Writes the PTX text of kernels unless it is already there, and returns its digest. It is
    /// compressed because only compilers read it, and nothing maps it.
    fn source(&mut self, text: &str) -> io::Result<String> {
        let digest = hexadecimal::text(&Sha256::digest(text));
        let name = manifest::source(&digest);
        if !self.members.contains_key(&name) {
            self.member(&name, |out| {
                // Without time stamp and file name, equal texts give equal bytes.
                let mut gzip = GzBuilder::new().write(out, Compression::default());
                gzip.write_all(text.as_bytes())?;
                gzip.finish().map(drop)
            })?;
        }
        Ok(digest)
    }

    fn member(&mut self, name: &str, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        // Without time stamps, equal content gives equal files.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .with_alignment(MEMBER_ALIGN)
            .large_file(true);
        self.zip.start_file(name, options).map_err(io::Error::from)?;
        let mut hashing = Hashing { inner: &mut self.zip, hash: Sha256::new(), bytes: 0 };
        write(&mut hashing)?;
        let member = Member { bytes: hashing.bytes, sha256: hexadecimal::text(&hashing.hash.finalize()), pieces: None };
        self.members.insert(name.to_string(), member);
        Ok(())
    }
}

struct Hashing<'a, W> {
    inner: &'a mut W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashing<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
