//! The operations of atomic instructions on a value in memory.

use crate::access::{Atomic, Update};
use crate::mode::Mode;
use crate::soft::{BF16, F16, F32, F64, Format};

/// Rounding to nearest even, with subnormal values. Atomics of memory use it whatever MODE says.
const PLAIN: Mode = Mode(0xf0 | 1 << 9);

fn halves(format: Format, old: u64, value: u64) -> u64 {
    let part = |shift: u32| PLAIN.add(format, [old >> shift & 0xffff, value >> shift & 0xffff]);
    part(0) | part(16) << 16
}

fn words(name: &str) -> Option<Update> {
    Some(match name {
        "swap" | "wrxchg" | "storexchg" => |_, v, _| v,
        "cmpswap" | "cmpst" | "cmpstore" => |old, v, c| if old == c { v } else { old },
        "add" => |old, v, _| old.wrapping_add(v),
        "sub" => |old, v, _| old.wrapping_sub(v),
        "rsub" => |old, v, _| v.wrapping_sub(old),
        "and" => |old, v, _| old & v,
        "or" => |old, v, _| old | v,
        "xor" => |old, v, _| old ^ v,
        "umin" => |old, v, _| old.min(v),
        "umax" => |old, v, _| old.max(v),
        "inc" => |old, v, _| if old >= v { 0 } else { old + 1 },
        "dec" => |old, v, _| if old == 0 || old > v { v } else { old - 1 },
        _ => return None,
    })
}

fn signed(name: &str, bytes: u32) -> Option<Update> {
    Some(match (name, bytes) {
        ("smin", 4) => |old, v, _| (old as i32).min(v as i32) as u32 as u64,
        ("smax", 4) => |old, v, _| (old as i32).max(v as i32) as u32 as u64,
        ("smin", 8) => |old, v, _| (old as i64).min(v as i64) as u64,
        ("smax", 8) => |old, v, _| (old as i64).max(v as i64) as u64,
        _ => return None,
    })
}

fn floats(name: &str) -> Option<(u32, Update)> {
    Some(match name {
        "add_f32" => (4, |old, v, _| PLAIN.add(F32, [old, v])),
        "add_f64" => (8, |old, v, _| PLAIN.add(F64, [old, v])),
        "pk_add_f16" => (4, |old, v, _| halves(F16, old, v)),
        "pk_add_bf16" => (4, |old, v, _| halves(BF16, old, v)),
        "min_f32" | "fmin" | "min_num_f32" => (4, |old, v, _| PLAIN.extreme(F32, [old, v], false)),
        "max_f32" | "fmax" | "max_num_f32" => (4, |old, v, _| PLAIN.extreme(F32, [old, v], true)),
        "min_f64" | "fmin_x2" | "min_num_f64" => (8, |old, v, _| PLAIN.extreme(F64, [old, v], false)),
        "max_f64" | "fmax_x2" | "max_num_f64" => (8, |old, v, _| PLAIN.extreme(F64, [old, v], true)),
        _ => return None,
    })
}

/// The operation that the end of a mnemonic names, such as `add`, `smax_x2`, `cmpst_b64` or
/// `pk_add_f16`.
pub(crate) fn find(name: &str) -> Option<Atomic> {
    if let Some((bytes, update)) = floats(name) {
        return Some(Atomic { bytes, compares: false, update });
    }
    let suffixes = [("_x2", 8), ("_b32", 4), ("_u32", 4), ("_i32", 4), ("_b64", 8), ("_u64", 8), ("_i64", 8)];
    let (base, bytes) =
        suffixes.iter().find_map(|&(suffix, bytes)| Some((name.strip_suffix(suffix)?, bytes))).unwrap_or((name, 4));
    let full = match (base, name.rsplit_once('_').map(|(_, ty)| ty)) {
        ("min", Some("i32" | "i64")) => "smin",
        ("max", Some("i32" | "i64")) => "smax",
        ("min", Some("u32" | "u64")) => "umin",
        ("max", Some("u32" | "u64")) => "umax",
        _ => base,
    };
    let update = words(full).or_else(|| signed(full, bytes))?;
    let compares = matches!(full, "cmpswap" | "cmpst" | "cmpstore");
    Some(Atomic { bytes, compares, update })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_generations_mean_the_same() {
        for (name, bytes, old, value, new) in [
            ("add", 4, 3, 4, 7),
            ("add_u64", 8, u64::MAX, 2, 1),
            ("smin", 4, 0xffff_ffff, 1, 0xffff_ffff),
            ("min_i64", 8, 5, u64::MAX, u64::MAX),
            ("inc_u32", 4, 7, 7, 0),
            ("dec", 4, 0, 9, 9),
            ("add_f32", 4, 0x3f80_0000, 0x4000_0000, 0x4040_0000),
        ] {
            let atomic = find(name).unwrap();
            assert_eq!((atomic.bytes, (atomic.update)(old, value, 0)), (bytes, new), "{name}");
        }
        assert!(find("strange").is_none());
    }
}
