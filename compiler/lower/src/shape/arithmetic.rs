//! Arithmetic on shapes.

use super::*;

impl Shape {
    pub(super) fn plus(self, other: Shape) -> Shape {
        let (Some(a), Some(b)) = (self.stride, other.stride) else { return Shape::VECTOR };
        let Some(stride) = a.checked_add(b) else { return Shape::VECTOR };
        Shape {
            stride: Some(stride),
            level: self.level.max(other.level),
            assumed: self.assumed || other.assumed,
            range: self.range.zip(other.range).map(|(a, b)| (a.0 + b.0, a.1 + b.1)),
            align_log2: self.align_log2.min(other.align_log2),
        }
    }

    pub(super) fn times_number(self, factor: i128) -> Shape {
        let Some(stride) = self.stride.and_then(|s| s.checked_mul(i64::try_from(factor).ok()?)) else {
            return Shape::VECTOR;
        };
        let range = self.range.and_then(|(low, high)| {
            let (a, b) = (low.checked_mul(factor)?, high.checked_mul(factor)?);
            // Values this large do not fit any register, and sums must not overflow.
            (a.abs() < 1 << 100 && b.abs() < 1 << 100).then(|| (a.min(b), a.max(b)))
        });
        let align_log2 =
            if factor == 0 { MAX_ALIGN_LOG2 } else { (self.align_log2 + factor.trailing_zeros()).min(MAX_ALIGN_LOG2) };
        Shape { stride: Some(stride), range, align_log2, ..self }
    }

    pub(super) fn times(self, other: Shape) -> Shape {
        match (self.known(), other.known()) {
            (_, Some(factor)) => self.times_number(factor).at_least(other.level),
            (Some(factor), _) => other.times_number(factor).at_least(self.level),
            _ if self.is_uniform() && other.is_uniform() => {
                let corners = self.range.zip(other.range).and_then(|(a, b)| {
                    let products =
                        [a.0.checked_mul(b.0)?, a.0.checked_mul(b.1)?, a.1.checked_mul(b.0)?, a.1.checked_mul(b.1)?];
                    let bounded = products.iter().all(|p| p.abs() < 1 << 100);
                    bounded.then(|| (products.into_iter().min().unwrap_or(0), products.into_iter().max().unwrap_or(0)))
                });
                let align_log2 = (self.align_log2 + other.align_log2).min(MAX_ALIGN_LOG2);
                Shape { range: corners, align_log2, ..Shape::uniform(self.level.max(other.level)) }
            }
            _ => Shape::VECTOR,
        }
    }

    /// Sign- or zero-extended from `bits`.
    pub(super) fn widened(self, bits: u32, signed: bool) -> Shape {
        let type_range =
            if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
        let exact = self.is_exact_in(bits, signed);
        match self.stride {
            None => self,
            Some(0) => Shape { range: if exact { self.range } else { Some(type_range) }, ..self },
            Some(_) => Shape { assumed: self.assumed || !exact, range: if exact { self.range } else { None }, ..self },
        }
    }

    /// Whether the value of every lane, as a mathematical integer, is representable in the integer
    /// type.
    pub fn is_exact_in(self, bits: u32, signed: bool) -> bool {
        let (low, high) = if signed { (-(1i128 << (bits - 1)), 1i128 << (bits - 1)) } else { (0, 1i128 << bits) };
        self.range.is_some_and(|r| r.0 >= low && r.1 < high)
    }

    pub(super) fn shifted_right(self, by: Shape) -> Option<Shape> {
        let k = u32::try_from(by.known()?).ok().filter(|&k| k < 32)?;
        let stride = self.stride?;
        let range = self.range.filter(|r| r.0 >= 0).map(|r| (r.0 >> k, r.1 >> k));
        if stride == 0 {
            return Some(Shape { range, align_log2: self.align_log2.saturating_sub(k), ..self });
        }
        if self.within_bucket(k) {
            return Some(Shape {
                stride: Some(0),
                range,
                align_log2: self.align_log2.saturating_sub(k),
                assumed: false,
                ..self
            });
        }
        let steps = stride % (1 << k) == 0 && self.align_log2 >= k && range.is_some();
        steps.then(|| Shape { stride: Some(stride >> k), range, align_log2: self.align_log2 - k, ..self })
    }

    /// `self & mask`
    pub(super) fn masked(self, mask: Shape) -> Option<Shape> {
        let mask = mask.known()?;
        let stride = self.stride?;
        let non_negative = (mask >= 0).then_some((0, mask));
        if stride == 0 {
            return Some(Shape {
                range: non_negative,
                align_log2: self.align_log2.max(mask.trailing_zeros().min(MAX_ALIGN_LOG2)),
                ..self
            });
        }
        let low_bits = (mask as u64).trailing_ones();
        if mask > 0 && mask < 1 << 30 && mask as u64 == (1u64 << low_bits) - 1 {
            if self.within_bucket(low_bits) {
                let last = i128::from(stride) * LAST_LANE;
                return Some(Shape {
                    range: Some((0, last)),
                    align_log2: MAX_ALIGN_LOG2,
                    assumed: false,
                    level: Level::Block,
                    ..self
                });
            }
            let same = stride % (1 << low_bits) == 0;
            return same.then_some(Shape { stride: Some(0), range: non_negative, assumed: false, ..self });
        }
        // A mask of high bits: all lanes lie within one bucket.
        let cleared = (mask as u64 as u32).trailing_zeros();
        let is_high = (mask as u32) == u32::MAX << cleared.min(31);
        (is_high && self.within_bucket(cleared)).then_some(Shape {
            stride: Some(0),
            range: None,
            assumed: false,
            ..self
        })
    }

    /// `self | bits`, if it equals the sum.
    pub(super) fn with_bits(self, bits: Shape) -> Option<Shape> {
        let value = bits.known().filter(|&v| v >= 0)?;
        let stride = self.stride.filter(|&s| s != 0)?;
        let width = 128 - value.leading_zeros();
        let disjoint = width <= self.align_log2 && width < 31 && stride % (1 << width) == 0;
        disjoint.then(|| self.plus(bits))
    }

    /// Quotient and remainder by a known divisor, if all lanes lie between two multiples of it.
    pub(super) fn divided(self, by: Shape, signed: bool) -> Option<(Shape, Shape)> {
        let divisor = by.known().filter(|&c| c > 0)?;
        if self.stride? == 0 || (signed && self.range.is_none_or(|r| r.0 < 0)) {
            return None;
        }
        let step = divisor.trailing_zeros().min(self.align_log2);
        if !self.within_bucket(step) {
            return None;
        }
        let quotient = Shape {
            stride: Some(0),
            range: self.range.map(|r| (r.0 / divisor, r.1 / divisor)),
            align_log2: 0,
            assumed: false,
            ..self
        };
        let remainder = Shape { range: Some((0, divisor - 1)), align_log2: step, assumed: false, ..self };
        Some((quotient, remainder))
    }

    /// The shape of a register after adding this definition.
    pub fn merged_into(self, old: Option<Shape>) -> Shape {
        old.map_or(self, |old| old.join(self))
    }
}
