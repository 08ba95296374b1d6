//! Scalar arithmetic.

use crate::op::{Op, Row, ScalarFn};
use crate::operand::Ty;
use crate::operand::Ty::{B32, B64, I64};

const fn two(f: ScalarFn) -> Op {
    Op::Scalar { dst: Some(B32), src: &[B32, B32], f }
}

const fn two64(f: ScalarFn) -> Op {
    Op::Scalar { dst: Some(B64), src: &[B64, B64], f }
}

const fn one(f: ScalarFn) -> Op {
    Op::Scalar { dst: Some(B32), src: &[B32], f }
}

const fn one64(f: ScalarFn) -> Op {
    Op::Scalar { dst: Some(B64), src: &[B64], f }
}

const fn mixed(dst: Ty, src: &'static [Ty], f: ScalarFn) -> Op {
    Op::Scalar { dst: Some(dst), src, f }
}

const fn test(f: ScalarFn) -> Op {
    Op::Scalar { dst: None, src: &[B32, B32], f }
}

const fn test64(f: ScalarFn) -> Op {
    Op::Scalar { dst: None, src: &[B64, B64], f }
}

const fn constant(f: ScalarFn) -> Op {
    Op::ScalarK { dst: true, f }
}

const fn test_constant(f: ScalarFn) -> Op {
    Op::ScalarK { dst: false, f }
}

/// Sets SCC if a 32-bit result is not zero.
fn logic(scc: &mut bool, value: u64) -> u64 {
    *scc = value as u32 != 0;
    u64::from(value as u32)
}

fn logic64(scc: &mut bool, value: u64) -> u64 {
    *scc = value != 0;
    value
}

fn set(scc: &mut bool, value: bool) -> u64 {
    *scc = value;
    0
}

fn add(scc: &mut bool, a: u64, b: u64, carry: u64) -> u64 {
    let sum = (a & 0xffff_ffff) + (b & 0xffff_ffff) + carry;
    *scc = sum >> 32 != 0;
    sum
}

fn subtract(scc: &mut bool, a: u64, b: u64, borrow: u64) -> u64 {
    let (a, b) = (a & 0xffff_ffff, b & 0xffff_ffff);
    *scc = a < b + borrow;
    a.wrapping_sub(b).wrapping_sub(borrow)
}

/// Adds two numbers; SCC is the signed overflow.
fn add_signed(scc: &mut bool, a: u64, b: u64) -> u64 {
    let (sum, overflow) = (a as i32).overflowing_add(b as i32);
    *scc = overflow;
    sum as u32 as u64
}

fn subtract_signed(scc: &mut bool, a: u64, b: u64) -> u64 {
    let (difference, overflow) = (a as i32).overflowing_sub(b as i32);
    *scc = overflow;
    difference as u32 as u64
}

fn shift_add(scc: &mut bool, a: u64, b: u64, shift: u32) -> u64 {
    let sum = ((a & 0xffff_ffff) << shift) + (b & 0xffff_ffff);
    *scc = sum >> 32 != 0;
    sum
}

/// Offset and width of a bit field operand.
fn field(b: u64, offset_bits: u32) -> (u32, u32) {
    (b as u32 & ((1 << offset_bits) - 1), b as u32 >> 16 & 0x7f)
}

fn bfe_u(value: u64, b: u64, size: u32) -> u64 {
    let (offset, width) = field(b, size.trailing_zeros());
    let moved = value >> offset;
    if width >= 64 { moved } else { moved & ((1 << width) - 1) }
}

fn bfe_i(value: u64, b: u64, size: u32) -> u64 {
    let (offset, width) = field(b, size.trailing_zeros());
    if width == 0 {
        return 0;
    }
    let width = width.min(size - offset);
    let shift = 64 - width;
    (((value >> offset) << shift) as i64 >> shift) as u64
}

fn mask(width: u64, offset: u64, size: u32) -> u64 {
    let (width, offset) = (width as u32 & (size - 1), offset as u32 & (size - 1));
    ((1u64 << width) - 1) << offset
}

/// The number of leading zeros, or -1.
fn leading(value: u64, size: u32) -> u64 {
    let value = value << (64 - size);
    if value == 0 { u64::MAX } else { value.leading_zeros().into() }
}

/// The number of leading bits that equal the sign bit, which counts too, or -1 if all do.
fn leading_sign(value: u64, size: u32) -> u64 {
    let value = ((value << (64 - size)) as i64 >> (64 - size)) as u64;
    let signless = if (value as i64) < 0 { !value } else { value };
    if signless == 0 { u64::MAX } else { u64::from(signless.leading_zeros() - (64 - size)) }
}

fn trailing(value: u64) -> u64 {
    if value == 0 { u64::MAX } else { value.trailing_zeros().into() }
}

fn quads(value: u64) -> u64 {
    let any = (value | value >> 1 | value >> 2 | value >> 3) & 0x1111_1111_1111_1111;
    any * 15
}

fn signed(value: u64) -> i32 {
    value as u32 as i32
}

/// The table.
pub(crate) const TABLE: &[Row] = &[
    ("s_mov_b32", one(|_, [a, ..]| a)),
    ("s_mov_b64", one64(|_, [a, ..]| a)),
    ("s_cmov_b32", mixed(B32, &[B32, B32], |scc, [a, old, _]| if *scc { a } else { old })),
    ("s_not_b32", one(|scc, [a, ..]| logic(scc, !a))),
    ("s_not_b64", one64(|scc, [a, ..]| logic64(scc, !a))),
    ("s_wqm_b32", one(|scc, [a, ..]| logic(scc, quads(a & 0xffff_ffff)))),
    ("s_wqm_b64", one64(|scc, [a, ..]| logic64(scc, quads(a)))),
    ("s_brev_b32", one(|_, [a, ..]| (a as u32).reverse_bits().into())),
    ("s_brev_b64", one64(|_, [a, ..]| a.reverse_bits())),
    ("s_bcnt0_i32_b32", one(|scc, [a, ..]| logic(scc, (a as u32).count_zeros().into()))),
    ("s_bcnt0_i32_b64", mixed(B32, &[B64], |scc, [a, ..]| logic(scc, a.count_zeros().into()))),
    ("s_bcnt1_i32_b32", one(|scc, [a, ..]| logic(scc, (a as u32).count_ones().into()))),
    ("s_bcnt1_i32_b64", mixed(B32, &[B64], |scc, [a, ..]| logic(scc, a.count_ones().into()))),
    ("s_ff0_i32_b32", one(|_, [a, ..]| trailing(!a & 0xffff_ffff))),
    ("s_ff0_i32_b64", mixed(B32, &[B64], |_, [a, ..]| trailing(!a))),
    ("s_ff1_i32_b32", one(|_, [a, ..]| trailing(a & 0xffff_ffff))),
    ("s_ff1_i32_b64", mixed(B32, &[B64], |_, [a, ..]| trailing(a))),
    ("s_flbit_i32_b32", one(|_, [a, ..]| leading(a, 32))),
    ("s_flbit_i32_b64", mixed(B32, &[B64], |_, [a, ..]| leading(a, 64))),
    ("s_flbit_i32", one(|_, [a, ..]| leading_sign(a, 32))),
    ("s_flbit_i32_i64", mixed(B32, &[B64], |_, [a, ..]| leading_sign(a, 64))),
    ("s_sext_i32_i8", one(|_, [a, ..]| a as i8 as u64)),
    ("s_sext_i32_i16", one(|_, [a, ..]| a as i16 as u64)),
    ("s_abs_i32", one(|scc, [a, ..]| logic(scc, signed(a).wrapping_abs() as u64))),
    ("s_bitset0_b32", mixed(B32, &[B32, B32], |_, [bit, old, _]| old & !(1 << (bit & 31)))),
    ("s_bitset1_b32", mixed(B32, &[B32, B32], |_, [bit, old, _]| old | 1 << (bit & 31))),
    ("s_bitset0_b64", mixed(B64, &[B32, B64], |_, [bit, old, _]| old & !(1 << (bit & 63)))),
    ("s_bitset1_b64", mixed(B64, &[B32, B64], |_, [bit, old, _]| old | 1 << (bit & 63))),
    ("s_add_u32", two(|scc, [a, b, _]| add(scc, a, b, 0))),
    ("s_sub_u32", two(|scc, [a, b, _]| subtract(scc, a, b, 0))),
    ("s_addc_u32", two(|scc, [a, b, _]| add(scc, a, b, u64::from(*scc)))),
    ("s_subb_u32", two(|scc, [a, b, _]| subtract(scc, a, b, u64::from(*scc)))),
    ("s_add_i32", two(|scc, [a, b, _]| add_signed(scc, a, b))),
    ("s_sub_i32", two(|scc, [a, b, _]| subtract_signed(scc, a, b))),
    ("s_add_u64", two64(|_, [a, b, _]| a.wrapping_add(b))),
    ("s_sub_u64", two64(|_, [a, b, _]| a.wrapping_sub(b))),
    ("s_mul_u64", two64(|_, [a, b, _]| a.wrapping_mul(b))),
    ("s_absdiff_i32", two(|scc, [a, b, _]| logic(scc, signed(a).wrapping_sub(signed(b)).wrapping_abs() as u64))),
    ("s_mul_i32", two(|_, [a, b, _]| a.wrapping_mul(b))),
    ("s_mul_hi_u32", two(|_, [a, b, _]| ((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32)),
    ("s_mul_hi_i32", two(|_, [a, b, _]| ((i64::from(signed(a)) * i64::from(signed(b))) >> 32) as u64)),
    ("s_min_i32", two(|scc, [a, b, _]| if set(scc, signed(a) < signed(b)) == 0 && *scc { a } else { b })),
    ("s_max_i32", two(|scc, [a, b, _]| if set(scc, signed(a) > signed(b)) == 0 && *scc { a } else { b })),
    ("s_min_u32", two(|scc, [a, b, _]| if set(scc, a < b) == 0 && *scc { a } else { b })),
    ("s_max_u32", two(|scc, [a, b, _]| if set(scc, a > b) == 0 && *scc { a } else { b })),
    ("s_cselect_b32", two(|scc, [a, b, _]| if *scc { a } else { b })),
    ("s_cselect_b64", two64(|scc, [a, b, _]| if *scc { a } else { b })),
    ("s_and_b32", two(|scc, [a, b, _]| logic(scc, a & b))),
    ("s_and_b64", two64(|scc, [a, b, _]| logic64(scc, a & b))),
    ("s_or_b32", two(|scc, [a, b, _]| logic(scc, a | b))),
    ("s_or_b64", two64(|scc, [a, b, _]| logic64(scc, a | b))),
    ("s_xor_b32", two(|scc, [a, b, _]| logic(scc, a ^ b))),
    ("s_xor_b64", two64(|scc, [a, b, _]| logic64(scc, a ^ b))),
    ("s_andn2_b32", two(|scc, [a, b, _]| logic(scc, a & !b))),
    ("s_andn2_b64", two64(|scc, [a, b, _]| logic64(scc, a & !b))),
    ("s_orn2_b32", two(|scc, [a, b, _]| logic(scc, a | !b))),
    ("s_orn2_b64", two64(|scc, [a, b, _]| logic64(scc, a | !b))),
    ("s_nand_b32", two(|scc, [a, b, _]| logic(scc, !(a & b)))),
    ("s_nand_b64", two64(|scc, [a, b, _]| logic64(scc, !(a & b)))),
    ("s_nor_b32", two(|scc, [a, b, _]| logic(scc, !(a | b)))),
    ("s_nor_b64", two64(|scc, [a, b, _]| logic64(scc, !(a | b)))),
    ("s_xnor_b32", two(|scc, [a, b, _]| logic(scc, !(a ^ b)))),
    ("s_xnor_b64", two64(|scc, [a, b, _]| logic64(scc, !(a ^ b)))),
    ("s_lshl_b32", two(|scc, [a, b, _]| logic(scc, a << (b & 31)))),
    ("s_lshl_b64", mixed(B64, &[B64, B32], |scc, [a, b, _]| logic64(scc, a << (b & 63)))),
    ("s_lshr_b32", two(|scc, [a, b, _]| logic(scc, a >> (b & 31)))),
    ("s_lshr_b64", mixed(B64, &[B64, B32], |scc, [a, b, _]| logic64(scc, a >> (b & 63)))),
    ("s_ashr_i32", two(|scc, [a, b, _]| logic(scc, (signed(a) >> (b & 31)) as u64))),
    ("s_ashr_i64", mixed(B64, &[I64, B32], |scc, [a, b, _]| logic64(scc, (a as i64 >> (b & 63)) as u64))),
    ("s_bfm_b32", two(|_, [a, b, _]| mask(a, b, 32))),
    ("s_bfm_b64", mixed(B64, &[B32, B32], |_, [a, b, _]| mask(a, b, 64))),
    ("s_bfe_u32", two(|scc, [a, b, _]| logic(scc, bfe_u(a, b, 32)))),
    ("s_bfe_i32", two(|scc, [a, b, _]| logic(scc, bfe_i(a, b, 32)))),
    ("s_bfe_u64", mixed(B64, &[B64, B32], |scc, [a, b, _]| logic64(scc, bfe_u(a, b, 64)))),
    ("s_bfe_i64", mixed(B64, &[I64, B32], |scc, [a, b, _]| logic64(scc, bfe_i(a, b, 64)))),
    ("s_lshl1_add_u32", two(|scc, [a, b, _]| shift_add(scc, a, b, 1))),
    ("s_lshl2_add_u32", two(|scc, [a, b, _]| shift_add(scc, a, b, 2))),
    ("s_lshl3_add_u32", two(|scc, [a, b, _]| shift_add(scc, a, b, 3))),
    ("s_lshl4_add_u32", two(|scc, [a, b, _]| shift_add(scc, a, b, 4))),
    ("s_pack_ll_b32_b16", two(|_, [a, b, _]| a & 0xffff | b << 16)),
    ("s_pack_lh_b32_b16", two(|_, [a, b, _]| a & 0xffff | b & 0xffff_0000)),
    ("s_pack_hh_b32_b16", two(|_, [a, b, _]| a >> 16 | b & 0xffff_0000)),
    ("s_pack_hl_b32_b16", two(|_, [a, b, _]| a >> 16 | b << 16)),
    ("s_cmp_eq_i32", test(|scc, [a, b, _]| set(scc, a == b))),
    ("s_cmp_lg_i32", test(|scc, [a, b, _]| set(scc, a != b))),
    ("s_cmp_gt_i32", test(|scc, [a, b, _]| set(scc, signed(a) > signed(b)))),
    ("s_cmp_ge_i32", test(|scc, [a, b, _]| set(scc, signed(a) >= signed(b)))),
    ("s_cmp_lt_i32", test(|scc, [a, b, _]| set(scc, signed(a) < signed(b)))),
    ("s_cmp_le_i32", test(|scc, [a, b, _]| set(scc, signed(a) <= signed(b)))),
    ("s_cmp_eq_u32", test(|scc, [a, b, _]| set(scc, a == b))),
    ("s_cmp_lg_u32", test(|scc, [a, b, _]| set(scc, a != b))),
    ("s_cmp_gt_u32", test(|scc, [a, b, _]| set(scc, a > b))),
    ("s_cmp_ge_u32", test(|scc, [a, b, _]| set(scc, a >= b))),
    ("s_cmp_lt_u32", test(|scc, [a, b, _]| set(scc, a < b))),
    ("s_cmp_le_u32", test(|scc, [a, b, _]| set(scc, a <= b))),
    ("s_cmp_eq_u64", test64(|scc, [a, b, _]| set(scc, a == b))),
    ("s_cmp_lg_u64", test64(|scc, [a, b, _]| set(scc, a != b))),
    ("s_bitcmp0_b32", test(|scc, [a, b, _]| set(scc, a >> (b & 31) & 1 == 0))),
    ("s_bitcmp1_b32", test(|scc, [a, b, _]| set(scc, a >> (b & 31) & 1 == 1))),
    ("s_bitcmp0_b64", Op::Scalar { dst: None, src: &[B64, B32], f: |scc, [a, b, _]| set(scc, a >> (b & 63) & 1 == 0) }),
    ("s_bitcmp1_b64", Op::Scalar { dst: None, src: &[B64, B32], f: |scc, [a, b, _]| set(scc, a >> (b & 63) & 1 == 1) }),
    ("s_movk_i32", constant(|_, [_, k, _]| k)),
    ("s_cmovk_i32", constant(|scc, [old, k, _]| if *scc { k } else { old })),
    ("s_addk_i32", constant(|scc, [a, k, _]| add_signed(scc, a, k))),
    ("s_addk_co_i32", constant(|scc, [a, k, _]| add_signed(scc, a, k))),
    ("s_mulk_i32", constant(|_, [a, k, _]| a.wrapping_mul(k))),
    ("s_cmpk_eq_i32", test_constant(|scc, [a, k, _]| set(scc, signed(a) == signed(k)))),
    ("s_cmpk_lg_i32", test_constant(|scc, [a, k, _]| set(scc, signed(a) != signed(k)))),
    ("s_cmpk_gt_i32", test_constant(|scc, [a, k, _]| set(scc, signed(a) > signed(k)))),
    ("s_cmpk_ge_i32", test_constant(|scc, [a, k, _]| set(scc, signed(a) >= signed(k)))),
    ("s_cmpk_lt_i32", test_constant(|scc, [a, k, _]| set(scc, signed(a) < signed(k)))),
    ("s_cmpk_le_i32", test_constant(|scc, [a, k, _]| set(scc, signed(a) <= signed(k)))),
    ("s_cmpk_eq_u32", test_constant(|scc, [a, k, _]| set(scc, a == k & 0xffff))),
    ("s_cmpk_lg_u32", test_constant(|scc, [a, k, _]| set(scc, a != k & 0xffff))),
    ("s_cmpk_gt_u32", test_constant(|scc, [a, k, _]| set(scc, a > k & 0xffff))),
    ("s_cmpk_ge_u32", test_constant(|scc, [a, k, _]| set(scc, a >= k & 0xffff))),
    ("s_cmpk_lt_u32", test_constant(|scc, [a, k, _]| set(scc, a < k & 0xffff))),
    ("s_cmpk_le_u32", test_constant(|scc, [a, k, _]| set(scc, a <= k & 0xffff))),
];
