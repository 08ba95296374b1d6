//! Reading the outline of a bundle from a file that a tenant has sent.

use super::directory::{self, DirectoryError, Source};
use super::manifest::{self, GRAPH, MANIFEST};
use super::outline::{GraphOutline, Outline};
use super::{Bundle, BundleError, json};
use crate::limits::JSON_BYTES_MAX;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

impl Bundle {
    /// Reads the outline of a bundle from an open file, such as a sealed memory file. The file must
    /// not change during the call. `path` appears in messages.
    ///
    /// The file may come from a tenant. This reads its directory and two members with limits, maps
    /// nothing, and takes memory for what it reads only, however large the file is.
    ///
    /// # Errors
    /// If it is not a bundle, has an unknown format, or its graph cannot be read.
    pub fn outline(file: &File, path: &Path) -> Result<Outline, BundleError> {
        let bytes = file.metadata().map_err(|source| BundleError::Io { path: path.into(), source })?.len();
        let reader = Reader { path, opened: Opened { file, bytes } };
        let members = directory::members(&reader.opened).map_err(|error| reader.failed(error))?;
        manifest::check_format(&reader.member(&members, MANIFEST)?, path)?;
        let graph: Result<GraphOutline, String> = json::parse(&reader.member(&members, GRAPH)?);
        Ok(graph.map_err(|reason| reader.corrupt(format!("{GRAPH}: {reason}")))?.into())
    }
}

/// A file with its size.
struct Opened<'a> {
    file: &'a File,
    bytes: u64,
}

impl Source for Opened<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }
}

struct Reader<'a> {
    path: &'a Path,
    opened: Opened<'a>,
}

impl Reader<'_> {
    /// Reads a JSON member.
    fn member(&self, members: &BTreeMap<String, Range<u64>>, name: &str) -> Result<Vec<u8>, BundleError> {
        let range = members.get(name).ok_or_else(|| self.corrupt(format!("{name} is missing")))?;
        let bytes = range.end - range.start;
        if bytes > JSON_BYTES_MAX as u64 {
            return Err(self.corrupt(format!("{name}: it has {bytes} bytes, at most {JSON_BYTES_MAX} are allowed")));
        }
        self.opened.read(range.start, bytes as usize).map_err(|error| self.failed(error.into()))
    }

    fn failed(&self, error: DirectoryError) -> BundleError {
        match error {
            DirectoryError::Io(source) => BundleError::Io { path: self.path.into(), source },
            DirectoryError::Corrupt(reason) => self.corrupt(reason),
        }
    }

    fn corrupt(&self, reason: String) -> BundleError {
        BundleError::Corrupt { path: self.path.into(), reason }
    }
}
