//! The measured run time of a function's batches as a linear function of their rows.

/// The factor by which earlier measurements lose weight with each new one.
const KEPT: f64 = 0.95;

/// A least-squares fit of run times to `fixed + rows * per_row`. Older measurements count less.
///
/// While all batches have had the same size, the slope is unknown. The whole time then counts as
/// fixed, so that larger batches are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    weight: f64,
    rows: f64,
    rows_squared: f64,
    ns: f64,
    rows_ns: f64,
}

impl Cost {
    /// Adds the run time of a batch.
    pub fn note(&mut self, rows: u64, ns: u64) {
        let (x, y) = (rows as f64, ns as f64);
        for (sum, term) in [
            (&mut self.weight, 1.0),
            (&mut self.rows, x),
            (&mut self.rows_squared, x * x),
            (&mut self.ns, y),
            (&mut self.rows_ns, x * y),
        ] {
            *sum = *sum * KEPT + term;
        }
    }

    /// The part of the run time that does not depend on the rows, in nanoseconds. Merging two
    /// batches saves this time. 0 before the first measurement.
    pub fn fixed_ns(&self) -> u64 {
        let (fixed, _) = self.line();
        fixed as u64
    }

    /// The expected run time of a batch, in nanoseconds; 0 before the first measurement.
    pub fn expected_ns(&self, rows: u64) -> u64 {
        let (fixed, per_row) = self.line();
        (fixed + per_row * rows as f64) as u64
    }

    /// The fitted line, `(fixed, per_row)`. Neither part is negative.
    fn line(&self) -> (f64, f64) {
        if self.weight == 0.0 {
            return (0.0, 0.0);
        }
        let (rows, ns) = (self.rows / self.weight, self.ns / self.weight);
        let variance = self.rows_squared / self.weight - rows * rows;
        // Sizes whose standard deviation is below a quarter of a row count as one size.
        if variance < 0.0625 {
            return (ns, 0.0);
        }
        let per_row = ((self.rows_ns / self.weight - rows * ns) / variance).max(0.0);
        let fixed = ns - per_row * rows;
        // A negative fixed part means that the slope is too steep: use the line through the origin.
        if fixed < 0.0 { (0.0, ns / rows) } else { (fixed, per_row) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: u64, expected: u64) -> bool {
        found.abs_diff(expected) <= expected / 1000 + 1
    }

    #[test]
    fn a_line_is_found_again() {
        for (fixed, per_row) in [(5_000_000, 100_000), (0, 3_000_000), (7_000_000, 0)] {
            let mut cost = Cost::default();
            for rows in [1, 4, 32, 7, 16, 2].repeat(3) {
                cost.note(rows, fixed + per_row * rows);
            }
            assert!(near(cost.fixed_ns(), fixed), "{fixed} {per_row}: {}", cost.fixed_ns());
            assert!(near(cost.expected_ns(20), fixed + 20 * per_row), "{fixed} {per_row}: {}", cost.expected_ns(20));
        }
    }

    #[test]
    fn one_size_says_nothing_about_the_slope() {
        let mut cost = Cost::default();
        assert_eq!((cost.fixed_ns(), cost.expected_ns(9)), (0, 0));
        (0..9).for_each(|_| cost.note(8, 4_000_000));
        assert!(near(cost.fixed_ns(), 4_000_000), "{}", cost.fixed_ns());
    }

    #[test]
    fn neither_part_is_negative() {
        let mut cost = Cost::default();
        // Larger batches were faster, as the first ones found cold caches.
        [(1, 9_000_000), (8, 4_000_000)].into_iter().for_each(|(rows, ns)| cost.note(rows, ns));
        assert!(near(cost.expected_ns(1), cost.expected_ns(100)));
        let mut cost = Cost::default();
        [(1, 100), (10, 1_000_000)].into_iter().for_each(|(rows, ns)| cost.note(rows, ns));
        assert_eq!(cost.fixed_ns(), 0);
    }

    #[test]
    fn old_measurements_fade() {
        let mut cost = Cost::default();
        (0..50).for_each(|i| cost.note(1 + i % 4, 1_000_000));
        (0..200).for_each(|i| cost.note(1 + i % 4, 9_000_000));
        assert!(near(cost.expected_ns(2), 9_000_000), "{}", cost.expected_ns(2));
    }
}
