//! Comparison of outputs with those saved by an earlier call, on another device or with another
//! version.

use crate::failure::OrUserError;
use crate::npy;
use crate::tensors::{is_array, saved_as, string_saved_as};
use anyhow::{Context, Result, ensure};
use atoll_protocol::{DataType, Tensor, strings, to_f64};
use std::path::Path;

/// Largest accepted relative difference: the accumulated rounding of a model.
const TOLERANCE: f64 = 1e-3;

/// Compares outputs with the files that `--save` wrote. Returns the largest relative difference,
/// ‖a−b‖/‖b‖.
pub(crate) fn compare(folder: &Path, outputs: &[Tensor]) -> Result<f64> {
    let mut worst = 0.0f64;
    for output in outputs {
        if !is_array(output) {
            compare_strings(folder, output)?;
            continue;
        }
        let expected = npy::read(&saved_as(folder, output), &output.name)
            .or_user_error()
            .context("cannot read the expected outputs")?;
        ensure!(
            (expected.datatype, &expected.shape) == (output.datatype, &output.shape),
            "output {} is {} {:?}, but {} {:?} is expected",
            output.name,
            output.datatype,
            output.shape,
            expected.datatype,
            expected.shape
        );
        if output.datatype == DataType::Bytes {
            ensure!(output.bytes == expected.bytes, "output {} has other strings than expected", output.name);
            continue;
        }
        let difference =
            relative_difference(&to_f64(output.datatype, &output.bytes), &to_f64(expected.datatype, &expected.bytes));
        ensure!(
            difference <= TOLERANCE,
            "output {} differs from the expected values by {difference:.1e}; the tolerance is {TOLERANCE:.0e}",
            output.name
        );
        worst = worst.max(difference);
    }
    Ok(worst)
}

/// Compares the strings of an output with the files of single strings.
fn compare_strings(folder: &Path, output: &Tensor) -> Result<()> {
    for (index, string) in strings(&output.bytes).flatten().enumerate() {
        let path = string_saved_as(folder, output, index);
        let expected = std::fs::read(&path)
            .with_context(|| path.display().to_string())
            .or_user_error()
            .context("cannot read the expected outputs")?;
        ensure!(string == expected, "output {} has other strings than expected", output.name);
    }
    Ok(())
}

/// ‖a−b‖/‖b‖ over the elements that are finite in at least one of the two. Infinite if the values
/// differ in finiteness.
fn relative_difference(values: &[f64], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let pairs = || values.iter().zip(expected).filter(|(value, expected)| value.is_finite() || expected.is_finite());
    let error = norm(&mut pairs().map(|(value, expected)| value - expected))
        / norm(&mut pairs().map(|(_, e)| *e)).max(f64::MIN_POSITIVE);
    if error.is_finite() { error } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::save;

    fn tensor(values: [f32; 3]) -> Tensor {
        Tensor::new("y", DataType::Fp32, vec![3], values.map(f32::to_le_bytes).concat()).unwrap()
    }

    #[test]
    fn outputs_may_differ_by_rounding_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), &[tensor([1.0, -2.0, 3.0])]).unwrap();
        let compare = |values| compare(folder.path(), &[tensor(values)]);
        assert_eq!(compare([1.0, -2.0, 3.0]).unwrap(), 0.0);
        assert!(compare([1.0, -2.0, 3.000_1]).unwrap() > 0.0);
        for wrong in [[1.0, -2.0, 3.1], [1.0, f32::NAN, 3.0], [1.0, f32::INFINITY, 3.0]] {
            assert!(compare(wrong).unwrap_err().to_string().contains("differs from"));
        }
    }

    #[test]
    fn missing_outputs_and_other_shapes_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        assert!(compare(folder.path(), &[tensor([0.0; 3])]).is_err());
        let short = Tensor::new("y", DataType::Fp32, vec![1], vec![0; 4]).unwrap();
        save(folder.path(), &[short]).unwrap();
        assert!(
            compare(folder.path(), &[tensor([0.0; 3])]).unwrap_err().to_string().contains("but FP32 [1] is expected")
        );
    }
}
