//! `tests/functions/grind.toml` as plain Rust, without the repeated work.

use atoll_core::rng::Rng;

/// Number of elements of its constants.
pub const TABLE_LENGTH: usize = 16384;

const FACTOR: u32 = 1_664_525;
const ADDEND: u32 = 1_013_904_223;

/// Its constants.
pub fn table(seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..TABLE_LENGTH).map(|_| rng.next_u64() as u32).collect()
}

/// Its result.
pub fn grind(x: &[u32], table: &[u32], times: u32) -> Vec<u32> {
    // `times` steps equal one step with other coefficients, computed by doubling.
    let (mut factor, mut addend) = (1_u32, 0_u32);
    let (mut step_factor, mut step_addend) = (FACTOR, ADDEND);
    let mut left = times;
    while left > 0 {
        if left & 1 == 1 {
            (factor, addend) =
                (factor.wrapping_mul(step_factor), addend.wrapping_mul(step_factor).wrapping_add(step_addend));
        }
        step_addend = step_addend.wrapping_mul(step_factor.wrapping_add(1));
        step_factor = step_factor.wrapping_mul(step_factor);
        left >>= 1;
    }
    x.iter().zip(table).map(|(x, c)| (x ^ c).wrapping_mul(factor).wrapping_add(addend)).collect()
}

/// The values as bytes on the device.
pub fn bytes(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_at_once_are_as_many_steps() {
        let (table, x) = (table(1), [0, 1, 77, u32::MAX]);
        for times in 0..20 {
            let mut plain: Vec<u32> = x.iter().zip(&table).map(|(x, c)| x ^ c).collect();
            (0..times).for_each(|_| {
                plain.iter_mut().for_each(|value| *value = value.wrapping_mul(FACTOR).wrapping_add(ADDEND))
            });
            assert_eq!(grind(&x, &table, times), plain, "{times} steps");
        }
    }
}
