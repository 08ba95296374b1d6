//! Opens the files of the repository.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file. Opening a pipe could block, and reading a device might never end.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Reads a regular file, but no more than `bytes_max` bytes and one.
pub(super) fn read_at_most(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, file] = ["pipe", "file"].map(|name| folder.path().join(name));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        for path in [&pipe, folder.path()] {
            assert!(
                read_at_most(path, 9).unwrap_err().to_string().contains("not a regular file"),
                "{}",
                path.display()
            );
        }
        std::fs::write(&file, "abc").unwrap();
        assert_eq!(
            (read_at_most(&file, 3).unwrap(), read_at_most(&file, 1).unwrap()),
            (b"abc".to_vec(), b"ab".to_vec())
        );
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_at_most(&link, 3).unwrap(), b"abc");
    }
}
