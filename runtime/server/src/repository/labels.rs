//! Files with the names of an output's classes, one per line.

use super::regular::read_at_most;
use crate::limits::LABELS_BYTES_MAX;
use atoll_kgraph::{BufferKind, Bundle};
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Why a file of labels cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabelsError {
    #[error("the labels of output `{output}` are in `{file}`; name a file in the folder of the model")]
    Outside { output: String, file: String },
    #[error("the labels of output `{output}`: {path}: {source}")]
    Io { output: String, path: PathBuf, source: io::Error },
    #[error("the labels of output `{output}`: {path} is larger than {LABELS_BYTES_MAX} bytes")]
    TooLarge { output: String, path: PathBuf },
    #[error("the settings have labels for the output `{0}`, which the model does not have")]
    NoOutput(String),
}

/// Labels by output.
pub(crate) type Labels = BTreeMap<String, Vec<String>>;

/// The outputs of a bundle.
pub(super) fn outputs(bundle: &Bundle) -> Vec<String> {
    bundle.graph().buffers_of(BufferKind::Output).map(|(_, of)| of.name.clone()).collect()
}

/// Reads the files of labels, given by output, from the folder of the model, which has these outputs.
pub(super) fn read(folder: &Path, files: &BTreeMap<String, String>, outputs: &[String]) -> Result<Labels, LabelsError> {
    if let Some(unknown) = files.keys().find(|output| !outputs.contains(output)) {
        return Err(LabelsError::NoOutput(unknown.clone()));
    }
    files.iter().map(|(output, file)| Ok((output.clone(), read_file(folder, output, file)?))).collect()
}

fn read_file(folder: &Path, output: &str, file: &str) -> Result<Vec<String>, LabelsError> {
    let is_plain = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if file.is_empty() || !is_plain {
        return Err(LabelsError::Outside { output: output.into(), file: file.into() });
    }
    let path = folder.join(file);
    let failed = |source: io::Error| LabelsError::Io { output: output.into(), path: path.clone(), source };
    let bytes = read_at_most(&path, LABELS_BYTES_MAX).map_err(failed)?;
    if bytes.len() as u64 > LABELS_BYTES_MAX {
        return Err(LabelsError::TooLarge { output: output.into(), path });
    }
    let text = String::from_utf8(bytes).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    Ok(text.lines().map(|line| line.trim_end().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_by_line_and_only_from_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("model");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(inside.join("labels.txt"), "cat\ndog \r\n\nlast").unwrap();
        std::fs::write(folder.path().join("secret"), "x").unwrap();
        assert_eq!(read_file(&inside, "out", "labels.txt").unwrap(), ["cat", "dog", "", "last"]);
        for (file, expected) in [
            ("../secret", "name a file in the folder"),
            ("/etc/passwd", "name a file in the folder"),
            ("", "name a file in the folder"),
            ("none.txt", "none.txt: No such file"),
        ] {
            let message = read_file(&inside, "out", file).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("`out`"), "{file}: {message}");
        }
        std::fs::write(inside.join("large"), vec![b'a'; LABELS_BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(read_file(&inside, "out", "large"), Err(LabelsError::TooLarge { .. })));
        std::fs::write(inside.join("binary"), [0xff, 0xfe]).unwrap();
        assert!(matches!(read_file(&inside, "out", "binary"), Err(LabelsError::Io { .. })));
    }
}
