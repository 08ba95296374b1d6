//! Annotations of FaST-GShare on a pod, in the file that Kubernetes makes of them (a volume of kind
//! `downwardAPI` with the field `metadata.annotations`): a line `NAME="VALUE"` for each.

use crate::failure::{OrUserError, user_error};
use anyhow::{Context, Result};
use atoll_client::AskedShare;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Largest file to read. Kubernetes allows 256 KiB of annotations, which are longer when quoted.
const FILE_BYTES_MAX: u64 = 2 << 20;

/// Largest amount of memory in bytes: an exbibyte.
const MEMORY_MAX: u64 = 1 << 60;

/// Begin of the names.
const PREFIX: &str = "fastgshare/";

/// The figures in a file. Those that have no annotation are absent.
///
/// # Errors
/// Fails if the file cannot be read, or if a figure is not possible, with its name and value.
pub(super) fn read(path: &Path) -> Result<AskedShare> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    read.with_context(|| format!("cannot read {}", path.display())).or_user_error()?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(user_error(format!("{} has over {FILE_BYTES_MAX} bytes", path.display())));
    }
    parse(&text).with_context(|| path.display().to_string()).or_user_error()
}

fn parse(text: &str) -> Result<AskedShare> {
    let mut asked = AskedShare::default();
    for line in text.lines() {
        let Some((name, quoted)) = line.strip_prefix(PREFIX).and_then(|rest| rest.split_once('=')) else { continue };
        let value = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(quoted);
        match name {
            "gpu_quota_request" => asked.quota_request = Some(number(name, value, 1.0)?),
            "gpu_quota_limit" => asked.quota_limit = Some(number(name, value, 1.0)?),
            "gpu_sm_partition" => asked.sm_partition = Some(number(name, value, 100.0)?),
            "gpu_mem" => asked.gpu_mem = Some(memory(name, value)?),
            // What its scheduler writes, such as the device that it chose.
            _ => {}
        }
    }
    if let (Some(request), Some(limit)) = (asked.quota_request, asked.quota_limit)
        && request > limit
    {
        anyhow::bail!("{PREFIX}gpu_quota_request is {request}, above the {limit} of {PREFIX}gpu_quota_limit");
    }
    Ok(asked)
}

/// A number above 0 and at most `max`.
fn number(name: &str, value: &str, max: f64) -> Result<f64> {
    let number: Option<f64> = value.parse().ok();
    number
        .filter(|number| *number > 0.0 && *number <= max)
        .with_context(|| format!("{PREFIX}{name} is {}: above 0 and at most {max} is possible", shown(value)))
}

fn memory(name: &str, value: &str) -> Result<u64> {
    let bytes: Option<u64> = value.parse().ok();
    bytes
        .filter(|bytes| (1..=MEMORY_MAX).contains(bytes))
        .with_context(|| format!("{PREFIX}{name} is {}: a number of bytes above 0 is possible", shown(value)))
}

/// The begin of a value, for a message.
fn shown(value: &str) -> String {
    format!("`{}`", value.chars().take(64).flat_map(char::escape_debug).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "\
kubernetes.io/config.source=\"api\"
fastgshare/gpu_mem=\"2147483648\"
fastgshare/gpu_quota_limit=\"0.8\"
fastgshare/gpu_quota_request=\"0.5\"
fastgshare/gpu_sm_partition=\"30\"
fastgshare/vgpu_id=\"3\"
note=\"fastgshare/gpu_mem=\\\"1\\\"\\nfastgshare/gpu_mem=\\\"2\\\"\"
";

    #[test]
    fn figures_are_read_as_they_are() {
        let asked = parse(ALL).unwrap();
        let expected = AskedShare {
            sm_partition: Some(30.0),
            quota_request: Some(0.5),
            quota_limit: Some(0.8),
            gpu_mem: Some(2 << 30),
        };
        assert_eq!(asked, expected);
        assert_eq!(parse("").unwrap(), AskedShare::default());
        assert_eq!(parse("fastgshare/gpu_mem").unwrap(), AskedShare::default());
    }

    #[test]
    fn what_is_not_possible_is_named() {
        for (line, says) in [
            ("fastgshare/gpu_sm_partition=\"130\"", "gpu_sm_partition is `130`: above 0 and at most 100"),
            ("fastgshare/gpu_sm_partition=\"-1\"", "`-1`"),
            ("fastgshare/gpu_quota_request=\"0\"", "`0`"),
            ("fastgshare/gpu_quota_request=\"NaN\"", "`NaN`"),
            ("fastgshare/gpu_quota_limit=\"inf\"", "`inf`"),
            ("fastgshare/gpu_quota_limit=\"\"", "``"),
            ("fastgshare/gpu_mem=\"-5\"", "a number of bytes"),
            ("fastgshare/gpu_mem=\"2Gi\"", "a number of bytes"),
            ("fastgshare/gpu_mem=\"99999999999999999999\"", "a number of bytes"),
            ("fastgshare/gpu_quota_request=\"0.9\"\nfastgshare/gpu_quota_limit=\"0.4\"", "is 0.9, above the 0.4"),
        ] {
            let error = format!("{:#}", parse(line).unwrap_err());
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("annotations");
        std::fs::write(&path, ALL).unwrap();
        assert_eq!(read(&path).unwrap().gpu_mem, Some(2 << 30));
        std::fs::write(&path, "x".repeat(1 + FILE_BYTES_MAX as usize)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("has over"));
        assert!(read(&folder.path().join("none")).is_err());
    }
}
