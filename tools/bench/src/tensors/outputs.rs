//! Summaries of outputs, and files of them.

use crate::failure::OrUserError;
use crate::npy;
use anyhow::{Context, Result};
use atoll_protocol::{DataType, Tensor, strings, to_f64};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Writes tensors into a folder, as NAME.npy. If a string of a tensor is not text, for example an
/// image, each string is written to a file of its own: NAME.0, NAME.1 and so on.
pub fn save(folder: &Path, outputs: &[Tensor]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for output in outputs {
        if is_array(output) {
            npy::write(&saved_as(folder, output), output).or_user_error()?;
            continue;
        }
        for (index, string) in strings(&output.bytes).flatten().enumerate() {
            let path = string_saved_as(folder, output, index);
            std::fs::write(&path, string).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

/// Whether [`save`] writes a tensor as an `.npy` file: numbers, or strings that are all texts.
pub fn is_array(tensor: &Tensor) -> bool {
    let is_text = |string: &[u8]| std::str::from_utf8(string).is_ok_and(|text| !text.ends_with('\0'));
    tensor.datatype != DataType::Bytes || strings(&tensor.bytes).flatten().all(is_text)
}

/// The file of a string of a tensor that is not saved as an array.
pub fn string_saved_as(folder: &Path, tensor: &Tensor, index: usize) -> PathBuf {
    saved_as(folder, tensor).with_extension(index.to_string())
}

/// The file of a tensor in a folder.
pub fn saved_as(folder: &Path, tensor: &Tensor) -> PathBuf {
    // Tensor names may contain characters that are not allowed in file names.
    let name: String =
        tensor.name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    folder.join(format!("{name}.npy"))
}

/// Summaries of outputs as text.
pub fn summaries_text(summaries: &[Summary]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for output in summaries {
        let shape: Vec<String> = output.shape.iter().map(i64::to_string).collect();
        let (name, datatype, shape) = (&output.name, output.datatype, shape.join(", "));
        if output.datatype == DataType::Bytes {
            let _ = writeln!(text, "{name}: {datatype}[{shape}]");
            for string in &output.strings {
                let _ = writeln!(text, "  {string:?}");
            }
            let count: i64 = output.shape.iter().product();
            if count > output.strings.len() as i64 {
                let _ = writeln!(text, "  and {} more", count - output.strings.len() as i64);
            }
            continue;
        }
        let _ = writeln!(
            text,
            "{name}: {datatype}[{shape}]  min {:.6}  max {:.6}  mean {:.6}",
            output.min, output.max, output.mean
        );
        if output.not_finite > 0 {
            let _ = writeln!(text, "  {} elements are NaN or infinite", output.not_finite);
        }
        for row in &output.top {
            let cells: Vec<String> = row.iter().map(|(index, value)| format!("{index}: {value:.6}")).collect();
            let _ = writeln!(text, "  top  {}", cells.join("   "));
        }
    }
    text
}

/// Summary of an output.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the output.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Smallest finite element.
    pub min: f64,
    /// Largest finite element.
    pub max: f64,
    /// Mean of the finite elements.
    pub mean: f64,
    /// Number of elements that are NaN or infinite.
    pub not_finite: usize,
    /// The highest elements of each row (last dimension), as (index, value), for the first rows.
    pub top: Vec<Vec<(usize, f64)>>,
    /// The first elements of a BYTES output as texts, each cut to [`TEXT_CHARACTERS_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strings: Vec<String>,
}

/// Number of strings that are shown.
const STRINGS_MAX: usize = 16;

/// Characters of a string that are shown.
pub const TEXT_CHARACTERS_MAX: usize = 1000;

/// Number of rows whose highest elements are shown.
const TOP_ROWS_MAX: usize = 4;

/// Summarizes an output; `top` is the number of highest elements per row.
pub fn summary(tensor: &Tensor, top: usize) -> Summary {
    let values = to_f64(tensor.datatype, &tensor.bytes);
    let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let row = usize::try_from(tensor.shape.last().copied().unwrap_or(1)).unwrap_or(0).max(1);
    let rows = if top == 0 { &[][..] } else { &values };
    Summary {
        name: tensor.name.clone(),
        datatype: tensor.datatype,
        shape: tensor.shape.clone(),
        min: finite.iter().copied().fold(f64::NAN, f64::min),
        max: finite.iter().copied().fold(f64::NAN, f64::max),
        mean: finite.iter().sum::<f64>() / finite.len() as f64,
        not_finite: values.len() - finite.len(),
        top: rows.chunks(row).take(TOP_ROWS_MAX).map(|row| highest(row, top)).collect(),
        strings: match tensor.datatype {
            DataType::Bytes => strings(&tensor.bytes).flatten().take(STRINGS_MAX).map(shown).collect(),
            _ => Vec::new(),
        },
    }
}

fn shown(string: &[u8]) -> String {
    String::from_utf8_lossy(string).chars().take(TEXT_CHARACTERS_MAX).collect()
}

fn highest(row: &[f64], count: usize) -> Vec<(usize, f64)> {
    let mut indexed: Vec<(usize, f64)> = row.iter().copied().enumerate().collect();
    indexed.sort_by(|a, b| b.1.total_cmp(&a.1));
    indexed.truncate(count);
    indexed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_contains_the_highest_elements() {
        let bytes = [0.5_f32, 2.0, f32::NAN, -1.0].map(f32::to_le_bytes).concat();
        let found = summary(&Tensor::new("t", DataType::Fp32, vec![2, 2], bytes).unwrap(), 1);
        assert_eq!((found.min, found.max, found.mean, found.not_finite), (-1.0, 2.0, 0.5, 1));
        assert_eq!(found.top[0], [(1, 2.0)]);
    }

    #[test]
    fn strings_are_shown_and_saved() {
        let long = "ä".repeat(TEXT_CHARACTERS_MAX + 1);
        let bytes = Tensor::string_bytes([b"a\"b".as_slice(), b"", long.as_bytes()].into_iter());
        let tensor = Tensor::new("out/y", DataType::Bytes, vec![3], bytes).unwrap();
        let found = summary(&tensor, 5);
        assert_eq!(found.strings, ["a\"b", "", &long[..2 * TEXT_CHARACTERS_MAX]]);
        let text = summaries_text(&[found]);
        assert!(text.starts_with("out/y: BYTES[3]\n  \"a\\\"b\"\n  \"\"\n"), "{text}");
        let many = Tensor::new("m", DataType::Bytes, vec![3, 6], vec![0; 4 * 18]).unwrap();
        assert!(summaries_text(&[summary(&many, 5)]).ends_with("  and 2 more\n"));
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), std::slice::from_ref(&tensor)).unwrap();
        assert_eq!(npy::read(&saved_as(folder.path(), &tensor), "out/y").unwrap().bytes, tensor.bytes);
        for other in [b"\xff".as_slice(), b"b\0"] {
            let bytes = Tensor::string_bytes([b"a", other].into_iter());
            save(folder.path(), &[Tensor::new("z", DataType::Bytes, vec![2], bytes).unwrap()]).unwrap();
            assert_eq!(std::fs::read(folder.path().join("z.0")).unwrap(), b"a");
            assert_eq!(std::fs::read(folder.path().join("z.1")).unwrap(), other);
        }
        let numbers = summary(&Tensor::new("t", DataType::Uint8, vec![1], vec![7]).unwrap(), 0);
        assert!(!serde_json::to_string(&numbers).unwrap().contains("strings"));
    }
}
