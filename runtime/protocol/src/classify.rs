//! The classification extension: the best classes instead of all scores.

use crate::datatype::DataType;
use crate::elements::{numbers, to_f64};
use crate::error::ProtocolError;
use crate::limits::CLASSES_MAX;
use crate::tensor::{Tensor, push_string};
use std::cmp::Ordering;

/// The scores of a tensor that are ranked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreGroups {
    /// Those of the last dimension.
    LastDimension,
    /// Those of each element of the first dimension, as Triton does for models with a
    /// `max_batch_size`.
    Rows,
    /// All of them, as Triton does for models without a `max_batch_size`.
    All,
}

impl ScoreGroups {
    /// The shape of the groups, and the number of scores in each.
    fn of(self, shape: &[i64]) -> Option<(&[i64], usize)> {
        let groups = match self {
            ScoreGroups::LastDimension => shape.len().checked_sub(1)?,
            ScoreGroups::Rows => usize::from(!shape.is_empty()),
            ScoreGroups::All => 0,
        };
        let (groups, scores) = shape.split_at(groups);
        Some((groups, usize::try_from(scores.iter().product::<i64>()).unwrap_or(0)))
    }
}

/// The `count` highest scores of each group, highest first, as strings `score:index`, or
/// `score:index:label` where there is a label.
pub fn top_classes(
    scores: &Tensor,
    count: usize,
    labels: &[String],
    groups: ScoreGroups,
) -> Result<Tensor, ProtocolError> {
    let refuse = |reason: String| ProtocolError::tensor(&scores.name, reason);
    if scores.datatype == DataType::Bytes {
        return Err(refuse("strings cannot be classified".into()));
    }
    let Some((groups, classes)) = groups.of(&scores.shape) else {
        return Err(refuse("a scalar cannot be classified".into()));
    };
    let kept = count.min(classes);
    if kept == 0 || kept > CLASSES_MAX {
        return Err(refuse(format!("cannot return {count} of {classes} classes; request 1 to {CLASSES_MAX}")));
    }
    let ranking = Ranking { classes, kept, labels };
    let bytes = &*scores.bytes;
    // Integers are ranked and written as they are, since doubles do not hold all of them.
    macro_rules! integers {
        ($type:ty) => {
            ranking.write(numbers(bytes).map(<$type>::from_le_bytes), <$type>::cmp, |score| score.to_string())
        };
    }
    let bytes = match scores.datatype {
        DataType::Bool | DataType::Uint8 => integers!(u8),
        DataType::Uint16 => integers!(u16),
        DataType::Uint32 => integers!(u32),
        DataType::Uint64 => integers!(u64),
        DataType::Int8 => integers!(i8),
        DataType::Int16 => integers!(i16),
        DataType::Int32 => integers!(i32),
        DataType::Int64 => integers!(i64),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 | DataType::Bytes => {
            let numbers = to_f64(scores.datatype, bytes).into_iter();
            ranking.write(numbers, f64::total_cmp, |score| format!("{score:.6}"))
        }
    };
    let shape = groups.iter().copied().chain([kept as i64]).collect();
    Tensor::new(scores.name.clone(), DataType::Bytes, shape, bytes)
}

/// How many scores a group has, how many are written, and the names of the classes.
struct Ranking<'a> {
    classes: usize,
    kept: usize,
    labels: &'a [String],
}

impl Ranking<'_> {
    /// The bytes of the strings of all groups.
    fn write<T>(
        &self,
        scores: impl Iterator<Item = T>,
        compare: impl Fn(&T, &T) -> Ordering,
        text: impl Fn(&T) -> String,
    ) -> Vec<u8> {
        let (scores, mut bytes) = (scores.collect::<Vec<T>>(), Vec::new());
        for group in scores.chunks_exact(self.classes) {
            for index in self.best(group, &compare) {
                let score = text(&group[index]);
                let text = match self.labels.get(index) {
                    Some(label) => format!("{score}:{index}:{label}"),
                    None => format!("{score}:{index}"),
                };
                push_string(&mut bytes, text.as_bytes());
            }
        }
        bytes
    }

    /// Indices of the highest scores, highest first; equal scores in index order.
    fn best<T>(&self, group: &[T], compare: impl Fn(&T, &T) -> Ordering) -> Vec<usize> {
        let mut indices: Vec<usize> = (0..group.len()).collect();
        let descending = |a: &usize, b: &usize| compare(&group[*b], &group[*a]).then(a.cmp(b));
        if self.kept < indices.len() {
            indices.select_nth_unstable_by(self.kept, descending);
            indices.truncate(self.kept);
        }
        indices.sort_unstable_by(descending);
        indices
    }
}

#[cfg(test)]
mod tests {
    use super::ScoreGroups::{All, LastDimension, Rows};
    use super::*;
    use crate::tensor::strings;

    fn texts(top: &Tensor) -> Vec<String> {
        strings(&top.bytes).map(|s| String::from_utf8_lossy(s.unwrap()).into_owned()).collect()
    }

    #[test]
    fn rows_are_ranked() {
        let bytes: Vec<u8> = [0.1_f32, 0.7, 0.2, 3.0, 1.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let scores = Tensor::new("s", DataType::Fp32, vec![2, 3], bytes).unwrap();
        let top = top_classes(&scores, 2, &[], LastDimension).unwrap();
        assert_eq!(top.shape, [2, 2]);
        assert_eq!(texts(&top), ["0.700000:1", "0.200000:2", "3.000000:0", "3.000000:2"]);
        assert_eq!(top_classes(&scores, 9, &[], LastDimension).unwrap().shape, [2, 3], "more than there are");
        assert!(top_classes(&scores, 0, &[], LastDimension).is_err());
    }

    #[test]
    fn integers_are_ranked_and_written_exactly() {
        let exact = [1_i64 << 53, (1 << 53) + 1, (1 << 53) + 2];
        let scores = Tensor::new("s", DataType::Int64, vec![3], exact.map(i64::to_le_bytes).concat()).unwrap();
        let labels = ["a".to_owned(), "b".to_owned()];
        let top = top_classes(&scores, 3, &labels, LastDimension).unwrap();
        assert_eq!(texts(&top), ["9007199254740994:2", "9007199254740993:1:b", "9007199254740992:0:a"]);
        let largest = [5, u64::MAX, u64::MAX - 1].map(u64::to_le_bytes).concat();
        let scores = Tensor::new("s", DataType::Uint64, vec![3], largest).unwrap();
        let top = top_classes(&scores, 2, &[], LastDimension).unwrap();
        assert_eq!(texts(&top), ["18446744073709551615:1", "18446744073709551614:2"]);
        let scores = Tensor::new("s", DataType::Int8, vec![3], [-1_i8, 2, -3].map(|v| v as u8).to_vec()).unwrap();
        assert_eq!(texts(&top_classes(&scores, 3, &[], LastDimension).unwrap()), ["2:1", "-1:0", "-3:2"]);
    }

    #[test]
    fn scores_are_ranked_by_group() {
        let scores = Tensor::new("s", DataType::Uint8, vec![2, 1, 3], vec![1, 2, 3, 6, 5, 4]).unwrap();
        let top = |groups| top_classes(&scores, 2, &[], groups).map(|top| (top.shape.clone(), texts(&top)));
        let rows = ["3:2", "2:1", "6:0", "5:1"].map(str::to_owned).to_vec();
        assert_eq!(top(LastDimension), Ok((vec![2, 1, 2], rows.clone())));
        assert_eq!(top(Rows), Ok((vec![2, 2], rows)));
        assert_eq!(top(All), Ok((vec![2], vec!["6:3".into(), "5:4".into()])));
        let scalar = Tensor::new("s", DataType::Uint8, vec![], vec![7]).unwrap();
        assert!(top_classes(&scalar, 1, &[], LastDimension).is_err());
        assert_eq!(texts(&top_classes(&scalar, 1, &[], All).unwrap()), ["7:0"]);
    }
}
