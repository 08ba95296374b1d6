//! Vector arithmetic of integers and bits, for one lane each.

use crate::op::{CarryFn, LaneFn, Op, Row};
use crate::operand::Ty;
use crate::operand::Ty::{B16, B32, B64, I64, P16};

const fn one(f: LaneFn) -> Op {
    Op::Lane { dst: B32, src: &[B32], f }
}

const fn two(f: LaneFn) -> Op {
    Op::Lane { dst: B32, src: &[B32, B32], f }
}

const fn three(f: LaneFn) -> Op {
    Op::Lane { dst: B32, src: &[B32, B32, B32], f }
}

const fn two16(f: LaneFn) -> Op {
    Op::Lane { dst: B16, src: &[B16, B16], f }
}

const fn three16(f: LaneFn) -> Op {
    Op::Lane { dst: B16, src: &[B16, B16, B16], f }
}

const fn mixed(dst: Ty, src: &'static [Ty], f: LaneFn) -> Op {
    Op::Lane { dst, src, f }
}

const fn packed(sources: usize, f: LaneFn) -> Op {
    Op::Packed { half: B16, sources, f }
}

const fn carry(carry_in: bool, f: CarryFn) -> Op {
    Op::Carry { src: &[B32, B32], dst: B32, carry_in, f }
}

fn s32(value: u64) -> i32 {
    value as u32 as i32
}

fn s16(value: u64) -> i16 {
    value as u16 as i16
}

fn s24(value: u64) -> i64 {
    (value << 40) as i64 >> 40
}

fn u24(value: u64) -> u64 {
    value & 0xff_ffff
}

fn word(value: u64) -> u64 {
    value & 0xffff_ffff
}

fn middle<T: Ord + Copy>(a: T, b: T, c: T) -> T {
    a.max(b).min(a.min(b).max(c))
}

fn sat_u16(value: u64) -> u64 {
    value.min(0xffff)
}

fn sat_i16(value: i32) -> u64 {
    value.clamp(-32768, 32767) as u16 as u64
}

fn leading(value: u64) -> u64 {
    if word(value) == 0 { u64::MAX } else { (value as u32).leading_zeros().into() }
}

fn leading_sign(value: u64) -> u64 {
    let signless = if s32(value) < 0 { !value as u32 } else { value as u32 };
    if signless == 0 { u64::MAX } else { signless.leading_zeros().into() }
}

fn trailing(value: u64) -> u64 {
    if word(value) == 0 { u64::MAX } else { value.trailing_zeros().into() }
}

fn bfe_u(value: u64, offset: u64, width: u64) -> u64 {
    word(value) >> (offset & 31) & ((1 << (width & 31)) - 1)
}

fn bfe_i(value: u64, offset: u64, width: u64) -> u64 {
    let (offset, width) = (offset & 31, (width & 31) as u32);
    if width == 0 {
        return 0;
    }
    let moved = i64::from(s32(value)) >> offset;
    (moved << (64 - width) >> (64 - width)) as u64
}

/// `v_perm_b32`: each byte of the selector selects one of eight bytes, a sign or a constant.
fn perm(high: u64, low: u64, selector: u64) -> u64 {
    let source = word(high) << 32 | word(low);
    (0..4).fold(0, |result, byte| {
        let select = selector >> (8 * byte) & 0xff;
        let value = match select {
            0..=7 => source >> (8 * select) & 0xff,
            8..=11 => (source >> (16 * (select - 8) + 15) & 1) * 0xff,
            12 => 0,
            _ => 0xff,
        };
        result | value << (8 * byte)
    })
}

fn sad(a: u64, b: u64, c: u64, bits: u32) -> u64 {
    let mask = (1u64 << bits) - 1;
    (0..32 / bits).fold(c, |sum, part| {
        let at = part * bits;
        sum.wrapping_add((a >> at & mask).abs_diff(b >> at & mask))
    })
}

fn mul_hi_i32(a: u64, b: u64) -> u64 {
    ((i64::from(s32(a)) * i64::from(s32(b))) >> 32) as u64
}

fn add(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let sum = word(a) + word(b) + u64::from(carry);
    (sum, sum >> 32 != 0)
}

fn subtract(a: u64, b: u64, borrow: bool) -> (u64, bool) {
    let (a, b) = (word(a), word(b) + u64::from(borrow));
    (a.wrapping_sub(b), a < b)
}

/// The sum of the products of four bytes; each operand is signed or unsigned.
pub(crate) fn dot4(a: u64, b: u64, c: u64, signed: [bool; 2]) -> i64 {
    let byte = |v: u64, at: u32, signed: bool| {
        let byte = (v >> at) as u8;
        if signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    (0..4).fold(c as i64, |sum, part| sum + byte(a, 8 * part, signed[0]) * byte(b, 8 * part, signed[1]))
}

fn dot8(a: u64, b: u64, c: i64, signed: bool) -> i64 {
    let nibble = |v: u64, at: u32| {
        let nibble = (v >> at & 15) as i64;
        if signed && nibble > 7 { nibble - 16 } else { nibble }
    };
    (0..8).fold(c, |sum, part| sum + nibble(a, 4 * part) * nibble(b, 4 * part))
}

fn dot2(a: u64, b: u64, c: i64, signed: bool) -> i64 {
    let half = |v: u64| if signed { i64::from(s16(v)) } else { i64::from(v as u16) };
    c + half(a) * half(b) + half(a >> 16) * half(b >> 16)
}

/// The table.
pub(crate) const TABLE: &[Row] = &[
    ("v_mov_b32", one(|_, [a, ..]| a)),
    ("v_mov_b64", mixed(B64, &[B64], |_, [a, ..]| a)),
    ("v_mov_b16", mixed(B16, &[B16], |_, [a, ..]| a)),
    ("v_not_b32", one(|_, [a, ..]| !a)),
    ("v_not_b16", mixed(B16, &[B16], |_, [a, ..]| !a)),
    ("v_bfrev_b32", one(|_, [a, ..]| (a as u32).reverse_bits().into())),
    ("v_ffbh_u32", one(|_, [a, ..]| leading(a))),
    ("v_ffbl_b32", one(|_, [a, ..]| trailing(a))),
    ("v_ffbh_i32", one(|_, [a, ..]| leading_sign(a))),
    (
        "v_sat_pk_u8_i16",
        mixed(B16, &[B32], |_, [a, ..]| {
            let byte = |v: u64| s16(v).clamp(0, 255) as u64;
            byte(a) | byte(a >> 16) << 8
        }),
    ),
    ("v_bcnt_u32_b32", two(|_, [a, b, _]| b.wrapping_add((a as u32).count_ones().into()))),
    ("v_add_u32", two(|_, [a, b, _]| a.wrapping_add(b))),
    ("v_add_u32:clamp", two(|_, [a, b, _]| (word(a) + word(b)).min(0xffff_ffff))),
    ("v_sub_u32", two(|_, [a, b, _]| a.wrapping_sub(b))),
    ("v_sub_u32:clamp", two(|_, [a, b, _]| word(a).saturating_sub(word(b)))),
    ("v_subrev_u32", two(|_, [a, b, _]| b.wrapping_sub(a))),
    ("v_subrev_u32:clamp", two(|_, [a, b, _]| word(b).saturating_sub(word(a)))),
    ("v_add_i32", two(|_, [a, b, _]| a.wrapping_add(b))),
    ("v_add_i32:clamp", two(|_, [a, b, _]| s32(a).saturating_add(s32(b)) as u64)),
    ("v_sub_i32", two(|_, [a, b, _]| a.wrapping_sub(b))),
    ("v_sub_i32:clamp", two(|_, [a, b, _]| s32(a).saturating_sub(s32(b)) as u64)),
    ("v_mul_lo_u32", two(|_, [a, b, _]| a.wrapping_mul(b))),
    ("v_mul_hi_u32", two(|_, [a, b, _]| (word(a) * word(b)) >> 32)),
    ("v_mul_hi_i32", two(|_, [a, b, _]| mul_hi_i32(a, b))),
    ("v_mul_u32_u24", two(|_, [a, b, _]| u24(a) * u24(b))),
    ("v_mul_i32_i24", two(|_, [a, b, _]| s24(a).wrapping_mul(s24(b)) as u64)),
    ("v_mul_hi_u32_u24", two(|_, [a, b, _]| (u24(a) * u24(b)) >> 32)),
    ("v_mul_hi_i32_i24", two(|_, [a, b, _]| ((s24(a) * s24(b)) >> 32) as u64)),
    ("v_mad_u32_u24", three(|_, [a, b, c]| (u24(a) * u24(b)).wrapping_add(c))),
    ("v_mad_i32_i24", three(|_, [a, b, c]| (s24(a).wrapping_mul(s24(b)) as u64).wrapping_add(c))),
    ("v_mad_u32_u16", mixed(B32, &[B16, B16, B32], |_, [a, b, c]| (a * b).wrapping_add(c))),
    (
        "v_mad_i32_i16",
        mixed(B32, &[B16, B16, B32], |_, [a, b, c]| {
            i64::from(i32::from(s16(a)) * i32::from(s16(b))).wrapping_add(c as i64) as u64
        }),
    ),
    ("v_min_i32", two(|_, [a, b, _]| s32(a).min(s32(b)) as u64)),
    ("v_max_i32", two(|_, [a, b, _]| s32(a).max(s32(b)) as u64)),
    ("v_min_u32", two(|_, [a, b, _]| word(a).min(word(b)))),
    ("v_max_u32", two(|_, [a, b, _]| word(a).max(word(b)))),
    ("v_and_b32", two(|_, [a, b, _]| a & b)),
    ("v_or_b32", two(|_, [a, b, _]| a | b)),
    ("v_xor_b32", two(|_, [a, b, _]| a ^ b)),
    ("v_xnor_b32", two(|_, [a, b, _]| !(a ^ b))),
    ("v_and_b16", two16(|_, [a, b, _]| a & b)),
    ("v_or_b16", two16(|_, [a, b, _]| a | b)),
    ("v_xor_b16", two16(|_, [a, b, _]| a ^ b)),
    ("v_lshlrev_b32", two(|_, [a, b, _]| b << (a & 31))),
    ("v_lshrrev_b32", two(|_, [a, b, _]| word(b) >> (a & 31))),
    ("v_ashrrev_i32", two(|_, [a, b, _]| (s32(b) >> (a & 31)) as u64)),
    ("v_lshlrev_b64", mixed(B64, &[B32, B64], |_, [a, b, _]| b << (a & 63))),
    ("v_lshrrev_b64", mixed(B64, &[B32, B64], |_, [a, b, _]| b >> (a & 63))),
    ("v_ashrrev_i64", mixed(B64, &[B32, I64], |_, [a, b, _]| (b as i64 >> (a & 63)) as u64)),
    ("v_lshl_add_u64", mixed(B64, &[B64, B32, B64], |_, [a, b, c]| (a << (b & 7)).wrapping_add(c))),
    ("v_bfm_b32", two(|_, [a, b, _]| ((1u64 << (a & 31)) - 1) << (b & 31))),
    ("v_bfe_u32", three(|_, [a, b, c]| bfe_u(a, b, c))),
    ("v_bfe_i32", three(|_, [a, b, c]| bfe_i(a, b, c))),
    ("v_bfi_b32", three(|_, [a, b, c]| a & b | !a & c)),
    (
        "v_lerp_u8",
        three(|_, [a, b, c]| {
            (0..4).fold(0, |all, byte| {
                let part = |v: u64| v >> (8 * byte) & 0xff;
                all | (part(a) + part(b) + (part(c) & 1)) >> 1 << (8 * byte)
            })
        }),
    ),
    ("v_alignbit_b32", three(|_, [a, b, c]| (word(a) << 32 | word(b)) >> (c & 31))),
    ("v_alignbyte_b32", three(|_, [a, b, c]| (word(a) << 32 | word(b)) >> (8 * (c & 3)))),
    ("v_perm_b32", three(|_, [a, b, c]| perm(a, b, c))),
    ("v_min3_i32", three(|_, [a, b, c]| s32(a).min(s32(b)).min(s32(c)) as u64)),
    ("v_max3_i32", three(|_, [a, b, c]| s32(a).max(s32(b)).max(s32(c)) as u64)),
    ("v_med3_i32", three(|_, [a, b, c]| middle(s32(a), s32(b), s32(c)) as u64)),
    ("v_min3_u32", three(|_, [a, b, c]| word(a).min(word(b)).min(word(c)))),
    ("v_max3_u32", three(|_, [a, b, c]| word(a).max(word(b)).max(word(c)))),
    ("v_med3_u32", three(|_, [a, b, c]| middle(word(a), word(b), word(c)))),
    ("v_maxmin_i32", three(|_, [a, b, c]| s32(a).max(s32(b)).min(s32(c)) as u64)),
    ("v_minmax_i32", three(|_, [a, b, c]| s32(a).min(s32(b)).max(s32(c)) as u64)),
    ("v_maxmin_u32", three(|_, [a, b, c]| word(a).max(word(b)).min(word(c)))),
    ("v_minmax_u32", three(|_, [a, b, c]| word(a).min(word(b)).max(word(c)))),
    ("v_min3_i16", three16(|_, [a, b, c]| s16(a).min(s16(b)).min(s16(c)) as u64)),
    ("v_max3_i16", three16(|_, [a, b, c]| s16(a).max(s16(b)).max(s16(c)) as u64)),
    ("v_med3_i16", three16(|_, [a, b, c]| middle(s16(a), s16(b), s16(c)) as u64)),
    ("v_min3_u16", three16(|_, [a, b, c]| a.min(b).min(c))),
    ("v_max3_u16", three16(|_, [a, b, c]| a.max(b).max(c))),
    ("v_med3_u16", three16(|_, [a, b, c]| middle(a, b, c))),
    ("v_sad_u8", three(|_, [a, b, c]| sad(a, b, c, 8))),
    ("v_sad_u16", three(|_, [a, b, c]| sad(a, b, c, 16))),
    ("v_sad_u32", three(|_, [a, b, c]| c.wrapping_add(word(a).abs_diff(word(b))))),
    ("v_add3_u32", three(|_, [a, b, c]| a.wrapping_add(b).wrapping_add(c))),
    ("v_lshl_add_u32", three(|_, [a, b, c]| (a << (b & 31)).wrapping_add(c))),
    ("v_add_lshl_u32", three(|_, [a, b, c]| a.wrapping_add(b) << (c & 31))),
    ("v_xad_u32", three(|_, [a, b, c]| (a ^ b).wrapping_add(c))),
    ("v_lshl_or_b32", three(|_, [a, b, c]| a << (b & 31) | c)),
    ("v_and_or_b32", three(|_, [a, b, c]| a & b | c)),
    ("v_or3_b32", three(|_, [a, b, c]| a | b | c)),
    ("v_xor3_b32", three(|_, [a, b, c]| a ^ b ^ c)),
    ("v_add_u16", two16(|_, [a, b, _]| a.wrapping_add(b))),
    ("v_add_u16:clamp", two16(|_, [a, b, _]| sat_u16(a + b))),
    ("v_sub_u16", two16(|_, [a, b, _]| a.wrapping_sub(b))),
    ("v_sub_u16:clamp", two16(|_, [a, b, _]| a.saturating_sub(b))),
    ("v_subrev_u16", two16(|_, [a, b, _]| b.wrapping_sub(a))),
    ("v_add_i16", two16(|_, [a, b, _]| a.wrapping_add(b))),
    ("v_add_i16:clamp", two16(|_, [a, b, _]| s16(a).saturating_add(s16(b)) as u64)),
    ("v_sub_i16", two16(|_, [a, b, _]| a.wrapping_sub(b))),
    ("v_sub_i16:clamp", two16(|_, [a, b, _]| s16(a).saturating_sub(s16(b)) as u64)),
    ("v_mul_lo_u16", two16(|_, [a, b, _]| a.wrapping_mul(b))),
    ("v_lshlrev_b16", two16(|_, [a, b, _]| b << (a & 15))),
    ("v_lshrrev_b16", two16(|_, [a, b, _]| b >> (a & 15))),
    ("v_ashrrev_i16", two16(|_, [a, b, _]| (s16(b) >> (a & 15)) as u64)),
    ("v_min_i16", two16(|_, [a, b, _]| s16(a).min(s16(b)) as u64)),
    ("v_max_i16", two16(|_, [a, b, _]| s16(a).max(s16(b)) as u64)),
    ("v_min_u16", two16(|_, [a, b, _]| a.min(b))),
    ("v_max_u16", two16(|_, [a, b, _]| a.max(b))),
    ("v_mad_u16", three16(|_, [a, b, c]| a.wrapping_mul(b).wrapping_add(c))),
    ("v_mad_i16", three16(|_, [a, b, c]| a.wrapping_mul(b).wrapping_add(c))),
    ("v_mad_legacy_u16", three16(|_, [a, b, c]| a.wrapping_mul(b).wrapping_add(c))),
    ("v_mad_legacy_i16", three16(|_, [a, b, c]| a.wrapping_mul(b).wrapping_add(c))),
    ("v_pack_b32_f16", mixed(B32, &[B16, B16], |_, [a, b, _]| a | b << 16)),
    ("v_cvt_pk_u16_u32", two(|_, [a, b, _]| sat_u16(word(a)) | sat_u16(word(b)) << 16)),
    ("v_cvt_pk_i16_i32", two(|_, [a, b, _]| sat_i16(s32(a)) | sat_i16(s32(b)) << 16)),
    ("v_cvt_i32_i16", mixed(B32, &[B16], |_, [a, ..]| s16(a) as u64)),
    ("v_cvt_u32_u16", mixed(B32, &[B16], |_, [a, ..]| a)),
    ("v_add_co_u32", carry(false, |[a, b, _], _| add(a, b, false))),
    ("v_sub_co_u32", carry(false, |[a, b, _], _| subtract(a, b, false))),
    ("v_subrev_co_u32", carry(false, |[a, b, _], _| subtract(b, a, false))),
    ("v_addc_co_u32", carry(true, |[a, b, _], c| add(a, b, c))),
    ("v_subb_co_u32", carry(true, |[a, b, _], c| subtract(a, b, c))),
    ("v_subbrev_co_u32", carry(true, |[a, b, _], c| subtract(b, a, c))),
    (
        "v_mad_u64_u32",
        Op::Carry {
            src: &[B32, B32, B64],
            dst: B64,
            carry_in: false,
            f: |[a, b, c], _| (word(a) * word(b)).overflowing_add(c),
        },
    ),
    (
        "v_mad_i64_i32",
        Op::Carry {
            src: &[B32, B32, I64],
            dst: B64,
            carry_in: false,
            f: |[a, b, c], _| {
                let (sum, overflow) = (i64::from(s32(a)) * i64::from(s32(b))).overflowing_add(c as i64);
                (sum as u64, overflow)
            },
        },
    ),
    ("v_pk_add_u16", packed(2, |_, [a, b, _]| a.wrapping_add(b))),
    ("v_pk_add_u16:clamp", packed(2, |_, [a, b, _]| sat_u16(a + b))),
    ("v_pk_add_i16", packed(2, |_, [a, b, _]| a.wrapping_add(b))),
    ("v_pk_add_i16:clamp", packed(2, |_, [a, b, _]| s16(a).saturating_add(s16(b)) as u64)),
    ("v_pk_sub_u16", packed(2, |_, [a, b, _]| a.wrapping_sub(b))),
    ("v_pk_sub_u16:clamp", packed(2, |_, [a, b, _]| a.saturating_sub(b))),
    ("v_pk_sub_i16", packed(2, |_, [a, b, _]| a.wrapping_sub(b))),
    ("v_pk_sub_i16:clamp", packed(2, |_, [a, b, _]| s16(a).saturating_sub(s16(b)) as u64)),
    ("v_pk_mul_lo_u16", packed(2, |_, [a, b, _]| a.wrapping_mul(b))),
    ("v_pk_mad_u16", packed(3, |_, [a, b, c]| a.wrapping_mul(b).wrapping_add(c))),
    ("v_pk_mad_i16", packed(3, |_, [a, b, c]| a.wrapping_mul(b).wrapping_add(c))),
    ("v_pk_lshlrev_b16", packed(2, |_, [a, b, _]| b << (a & 15))),
    ("v_pk_lshrrev_b16", packed(2, |_, [a, b, _]| b >> (a & 15))),
    ("v_pk_ashrrev_i16", packed(2, |_, [a, b, _]| (s16(b) >> (a & 15)) as u64)),
    ("v_pk_min_i16", packed(2, |_, [a, b, _]| s16(a).min(s16(b)) as u64)),
    ("v_pk_max_i16", packed(2, |_, [a, b, _]| s16(a).max(s16(b)) as u64)),
    ("v_pk_min_u16", packed(2, |_, [a, b, _]| a.min(b))),
    ("v_pk_max_u16", packed(2, |_, [a, b, _]| a.max(b))),
    ("v_dot2_i32_i16", mixed(B32, &[P16, P16, B32], |_, [a, b, c]| dot2(a, b, c as i64, true) as u64)),
    ("v_dot2_u32_u16", mixed(B32, &[P16, P16, B32], |_, [a, b, c]| dot2(a, b, c as i64, false) as u64)),
    ("v_dot4_i32_i8", three(|_, [a, b, c]| dot4(a, b, c, [true; 2]) as u64)),
    ("v_dot4_u32_u8", three(|_, [a, b, c]| dot4(a, b, c, [false; 2]) as u64)),
    ("v_dot8_i32_i4", three(|_, [a, b, c]| dot8(a, b, c as i64, true) as u64)),
    ("v_dot8_u32_u4", three(|_, [a, b, c]| dot8(a, b, c as i64, false) as u64)),
    (
        "v_dot4c_i32_i8",
        Op::Accumulate { dst: B32, src: &[B32, B32], f: |_, [a, b, c]| dot4(a, b, c, [true; 2]) as u64 },
    ),
    ("v_mul_legacy_u16", two16(|_, [a, b, _]| a.wrapping_mul(b))),
];
