//! The classification extension: the best classes instead of all scores.

use crate::datatype::DataType;
use crate::elements::to_f64;
use crate::error::ProtocolError;
use crate::limits::CLASSES_MAX;
use crate::tensor::{Tensor, push_string};

/// The `count` highest scores of each row of the last dimension, highest first, as strings
/// `score:index`, or `score:index:label` where there is a label.
pub fn top_classes(scores: &Tensor, count: usize, labels: &[String]) -> Result<Tensor, ProtocolError> {
    let refuse = |reason: String| ProtocolError::tensor(&scores.name, reason);
    if scores.datatype == DataType::Bytes {
        return Err(refuse("strings cannot be classified".into()));
    }
    let Some((&classes, rows)) = scores.shape.split_last() else {
        return Err(refuse("a scalar cannot be classified".into()));
    };
    let classes = usize::try_from(classes).unwrap_or(0);
    let kept = count.min(classes);
    if kept == 0 || kept > CLASSES_MAX {
        return Err(refuse(format!("cannot return {count} of {classes} classes; request 1 to {CLASSES_MAX}")));
    }
    let mut bytes = Vec::new();
    for row in to_f64(scores.datatype, &scores.bytes).chunks_exact(classes) {
        for index in best(row, kept) {
            let text = match labels.get(index) {
                Some(label) => format!("{:.6}:{index}:{label}", row[index]),
                None => format!("{:.6}:{index}", row[index]),
            };
            push_string(&mut bytes, text.as_bytes());
        }
    }
    let shape = rows.iter().copied().chain([kept as i64]).collect();
    Tensor::new(scores.name.clone(), DataType::Bytes, shape, bytes)
}

/// Indices of the highest values, highest first; equal values in index order.
fn best(row: &[f64], count: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..row.len()).collect();
    let descending = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
    if count < indices.len() {
        indices.select_nth_unstable_by(count, descending);
        indices.truncate(count);
    }
    indices.sort_unstable_by(descending);
    indices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::strings;

    #[test]
    fn rows_are_ranked() {
        let bytes: Vec<u8> = [0.1_f32, 0.7, 0.2, 3.0, 1.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let scores = Tensor::new("s", DataType::Fp32, vec![2, 3], bytes).unwrap();
        let top = top_classes(&scores, 2, &[]).unwrap();
        let text: Vec<_> = strings(&top.bytes).map(|s| String::from_utf8_lossy(s.unwrap()).into_owned()).collect();
        assert_eq!(top.shape, [2, 2]);
        assert_eq!(text, ["0.700000:1", "0.200000:2", "3.000000:0", "3.000000:2"]);
        assert_eq!(top_classes(&scores, 9, &[]).unwrap().shape, [2, 3], "more than there are");
        assert!(top_classes(&scores, 0, &[]).is_err());
    }
}
