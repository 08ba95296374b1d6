//! Decodes the text of an instruction to an operation: removes suffixes of encodings, maps names of
//! other generations, and looks up the tables of the families.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::fault::FaultKind;
use crate::op::{Class, Inst, Op, Row};
use crate::operand::{Kind, Ty};
use crate::target::Target;
use crate::text::Parsed;
use crate::{compare, control, convert, cross_lane, flat, lds, matrix, salu, smem, special, valu_float, valu_int};

/// Names of later generations, and the names that earlier ones have for the same operation.
const ALIASES: &[(&str, &str)] = &[
    ("s_ctz_i32_b32", "s_ff1_i32_b32"),
    ("s_ctz_i32_b64", "s_ff1_i32_b64"),
    ("s_clz_i32_u32", "s_flbit_i32_b32"),
    ("s_clz_i32_u64", "s_flbit_i32_b64"),
    ("s_cls_i32", "s_flbit_i32"),
    ("s_cls_i32_i64", "s_flbit_i32_i64"),
    ("s_and_not1_b32", "s_andn2_b32"),
    ("s_and_not1_b64", "s_andn2_b64"),
    ("s_or_not1_b32", "s_orn2_b32"),
    ("s_or_not1_b64", "s_orn2_b64"),
    ("s_and_not1_saveexec", "s_andn2_saveexec"),
    ("s_and_not0_saveexec", "s_andn1_saveexec"),
    ("s_or_not1_saveexec", "s_orn2_saveexec"),
    ("s_or_not0_saveexec", "s_orn1_saveexec"),
    ("s_and_not0_wrexec", "s_andn1_wrexec"),
    ("s_and_not1_wrexec", "s_andn2_wrexec"),
    ("s_add_co_u32", "s_add_u32"),
    ("s_add_co_ci_u32", "s_addc_u32"),
    ("s_sub_co_u32", "s_sub_u32"),
    ("s_sub_co_ci_u32", "s_subb_u32"),
    ("s_add_co_i32", "s_add_i32"),
    ("s_sub_co_i32", "s_sub_i32"),
    ("s_add_nc_u64", "s_add_u64"),
    ("s_sub_nc_u64", "s_sub_u64"),
    ("v_add_nc_u32", "v_add_u32"),
    ("v_sub_nc_u32", "v_sub_u32"),
    ("v_subrev_nc_u32", "v_subrev_u32"),
    ("v_add_nc_i32", "v_add_i32"),
    ("v_sub_nc_i32", "v_sub_i32"),
    ("v_add_nc_u16", "v_add_u16"),
    ("v_sub_nc_u16", "v_sub_u16"),
    ("v_add_nc_i16", "v_add_i16"),
    ("v_sub_nc_i16", "v_sub_i16"),
    ("v_add_co_ci_u32", "v_addc_co_u32"),
    ("v_sub_co_ci_u32", "v_subb_co_u32"),
    ("v_subrev_co_ci_u32", "v_subbrev_co_u32"),
    ("v_mad_co_u64_u32", "v_mad_u64_u32"),
    ("v_mad_co_i64_i32", "v_mad_i64_i32"),
    ("v_clz_i32_u32", "v_ffbh_u32"),
    ("v_ctz_i32_b32", "v_ffbl_b32"),
    ("v_cls_i32", "v_ffbh_i32"),
    ("v_cvt_pk_rtz_f16_f32", "v_cvt_pkrtz_f16_f32"),
    ("v_cvt_floor_i32_f32", "v_cvt_flr_i32_f32"),
    ("v_cvt_nearest_i32_f32", "v_cvt_rpi_i32_f32"),
    ("v_cvt_pk_norm_i16_f32", "v_cvt_pknorm_i16_f32"),
    ("v_cvt_pk_norm_u16_f32", "v_cvt_pknorm_u16_f32"),
    ("v_mul_dx9_zero_f32", "v_mul_legacy_f32"),
    ("v_fma_dx9_zero_f32", "v_fma_legacy_f32"),
    ("v_dot2acc_f32_f16", "v_dot2c_f32_f16"),
    ("v_min_num_f16", "v_min_f16"),
    ("v_max_num_f16", "v_max_f16"),
    ("v_min_num_f32", "v_min_f32"),
    ("v_max_num_f32", "v_max_f32"),
    ("v_min_num_f64", "v_min_f64"),
    ("v_max_num_f64", "v_max_f64"),
    ("v_min3_num_f32", "v_min3_f32"),
    ("v_max3_num_f32", "v_max3_f32"),
    ("v_med3_num_f32", "v_med3_f32"),
    ("v_min3_num_f16", "v_min3_f16"),
    ("v_max3_num_f16", "v_max3_f16"),
    ("v_med3_num_f16", "v_med3_f16"),
    ("v_maxmin_num_f32", "v_maxmin_f32"),
    ("v_minmax_num_f32", "v_minmax_f32"),
    ("v_pk_min_num_f16", "v_pk_min_f16"),
    ("v_pk_max_num_f16", "v_pk_max_f16"),
];

const FAMILIES: &[&[Row]] = &[
    salu::TABLE,
    control::TABLE,
    valu_int::TABLE,
    valu_float::TABLE,
    valu_float::HALF,
    valu_float::SINGLE,
    valu_float::DOUBLE,
    convert::TABLE,
    cross_lane::TABLE,
    special::TABLE,
    lds::TABLE,
];

fn table() -> &'static HashMap<&'static str, Op> {
    static TABLE: OnceLock<HashMap<&'static str, Op>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let rows = FAMILIES.iter().flat_map(|family| family.iter().copied());
        let mut table: HashMap<_, _> = rows.collect();
        for (new, old) in ALIASES {
            if let Some(&op) = table.get(old) {
                table.insert(new, op);
            }
        }
        table
    })
}

/// A mnemonic without the suffixes that only name its encoding.
fn base_name(mnemonic: &str) -> String {
    let suffixes = ["_e64_dpp", "_dpp", "_sdwa", "_e32", "_e64"];
    let name = suffixes.iter().find_map(|s| mnemonic.strip_suffix(s)).unwrap_or(mnemonic);
    if name.contains("_saveexec_b") || name.contains("_wrexec_b") {
        return name[..name.len() - 4].to_owned();
    }
    match name.strip_prefix("v_dual_") {
        Some(rest) => format!("v_{rest}"),
        None => name.to_owned(),
    }
}

fn find(name: &str, clamp: bool) -> Option<Op> {
    if let Some(op) = control::find_nothing(name) {
        return Some(op);
    }
    let op = table().get(name).copied();
    let integer = match op {
        Some(Op::Lane { dst, .. } | Op::Accumulate { dst, .. }) => !dst.is_float(),
        Some(Op::Packed { half, .. }) => !half.is_float(),
        _ => false,
    };
    if clamp && integer {
        let old = ALIASES.iter().find(|(new, _)| *new == name).map_or(name, |(_, old)| old);
        return table().get(format!("{old}:clamp").as_str()).copied();
    }
    op.or_else(|| compare::find(name))
        .or_else(|| scalar_float(name))
        .or_else(|| flat::find(name).map(|(space, action)| Op::Memory(space, action)))
        .or_else(|| lds::find(name).map(Op::Lds))
        .or_else(|| smem::find(name).map(Op::ScalarLoad))
        .or_else(|| matrix::find(name).map(Op::Matrix))
}

/// A scalar floating-point operation of gfx11.5 and gfx12, which has the name and function of a
/// vector operation.
fn scalar_float(name: &str) -> Option<Op> {
    let rest = name
        .strip_prefix("v_s_")
        .or_else(|| name.strip_prefix("s_"))
        .filter(|r| r.contains("_f32") || r.contains("_f16"))?;
    let vector = format!("v_{rest}");
    let narrow = |dst: Ty, src: &[Ty]| dst.bits() <= 32 && src.iter().all(|ty| ty.bits() <= 32);
    match table().get(vector.as_str()).copied().or_else(|| compare::find(&vector))? {
        Op::Lane { dst, src, f } if narrow(dst, src) => Some(Op::ScalarFloat { dst, src, accumulate: false, f }),
        Op::Accumulate { dst, src, f } if narrow(dst, src) => Some(Op::ScalarFloat { dst, src, accumulate: true, f }),
        Op::Compare { src, f, exec: false } if narrow(src[0], &src) => Some(Op::ScalarCompare { src, f }),
        _ => None,
    }
}

fn class(name: &str, op: &Op) -> Class {
    let control =
        ["s_cbranch", "s_branch", "s_barrier", "s_wait", "s_endpgm", "s_setpc", "s_swappc", "s_call", "s_nop"];
    match op {
        Op::Matrix(_) => Class::Matrix,
        Op::ScalarLoad(_) => Class::ScalarMemory,
        _ if name.starts_with("scratch_") => Class::Scratch,
        Op::Memory(..) => Class::VectorMemory,
        _ if name.starts_with("ds_") => Class::Lds,
        _ if control.iter().any(|c| name.starts_with(c)) => Class::Control,
        _ if name.starts_with("s_") => Class::Scalar,
        _ if name.starts_with("v_") => Class::Vector,
        _ => Class::Control,
    }
}

/// Whether a 16-bit result on gfx9 sets the upper half of its register to zero. Operations with one
/// or two sources do; those with three keep the upper half.
fn zeroes_upper(name: &str, op: &Op) -> bool {
    match op {
        Op::Lane { src, .. } => src.len() < 3 || name.contains("legacy"),
        Op::Select { .. } => true,
        _ => false,
    }
}

/// Refuses modifiers that the form of an operation does not implement. Returns what is refused.
fn refusal(name: &str, op: &Op, parsed: &Parsed) -> Option<String> {
    let mods = &parsed.mods;
    if let Some(unknown) = mods.unknown.first() {
        return Some(format!("modifier `{unknown}`"));
    }
    let vector_form = matches!(op, Op::Lane { .. } | Op::Accumulate { .. } | Op::Select { .. });
    let permutes = vector_form || matches!(op, Op::Compare { .. } | Op::Carry { .. });
    let float = match op {
        Op::Lane { dst, .. } | Op::Accumulate { dst, .. } | Op::Mix { dst, .. } => dst.is_float(),
        Op::Packed { half, .. } => half.is_float(),
        _ => false,
    };
    if (mods.dpp.is_some() || mods.sdwa.is_some()) && !permutes {
        return Some("DPP or SDWA of this operation".to_owned());
    }
    let saturates = matches!(op, Op::Lane { .. } | Op::Packed { .. }) || name == "v_dot4_i32_iu8";
    if mods.omod != 0 && !float || mods.clamp && !float && !saturates {
        return Some("an output modifier of this operation".to_owned());
    }
    let sext = parsed.operands.iter().any(|o| o.sext);
    (sext && mods.sdwa.is_none()).then(|| "sext without SDWA".to_owned())
}

fn one(text: &str, bytes: &[u8], target: &Target) -> Result<Inst, FaultKind> {
    let parsed = Parsed::parse(text);
    let name = base_name(&parsed.mnemonic);
    let op = find(&name, parsed.mods.clamp).ok_or_else(|| FaultKind::UnknownInstruction(parsed.mnemonic.clone()))?;
    let free = control::find_nothing(&name).is_some() || name.starts_with("s_sendmsg");
    if let Some(what) = refusal(&name, &op, &parsed).filter(|_| !free) {
        return Err(FaultKind::Unsupported(what));
    }
    let mut raw = [0; 8];
    let count = bytes.len().min(8);
    raw[..count].copy_from_slice(&bytes[..count]);
    let zero_upper = target.zeroes_upper_half && zeroes_upper(&name, &op);
    Ok(Inst {
        class: class(&name, &op),
        op,
        mnemonic: name,
        operands: parsed.operands,
        mods: parsed.mods,
        raw: u64::from_le_bytes(raw),
        size: bytes.len() as u64,
        text: text.to_owned(),
        second: None,
        zero_upper,
    })
}

/// Decodes the text of one instruction, whose encoding is `bytes`.
pub(crate) fn decode(text: &str, bytes: &[u8], target: &Target) -> Result<Inst, FaultKind> {
    let Some((first, second)) = text.split_once(" :: ") else {
        return one(text, bytes, target);
    };
    let mut first = one(first.trim(), bytes, target)?;
    let second = one(second.trim(), bytes, target)?;
    for part in [&first, &second] {
        let simple = matches!(part.op, Op::Lane { .. } | Op::Accumulate { .. } | Op::Select { .. });
        let vector = matches!(part.operands.first().map(|o| &o.kind), Some(Kind::Vector { .. }));
        if !simple || !vector {
            return Err(FaultKind::Unsupported(format!("`{}` in a dual instruction", part.mnemonic)));
        }
    }
    first.text = text.to_owned();
    first.second = Some(Box::new(second));
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_aliases_lead_somewhere() {
        let count: usize = FAMILIES.iter().map(|f| f.len()).sum();
        assert_eq!(table().len(), count + ALIASES.len());
        for (new, old) in ALIASES {
            assert!(table().contains_key(old), "{new} stands for {old}, which no family has");
        }
    }

    #[test]
    fn unknown_names_and_modifiers_are_refused() {
        let target = Target::of_flags(0x41).unwrap();
        let kind = |text| decode(text, &[0; 8], &target).err();
        assert_eq!(kind("v_strange_e32 v0, v1"), Some(FaultKind::UnknownInstruction("v_strange_e32".to_owned())));
        assert!(matches!(kind("v_add_f32_e64 v0, v1, v2 strange:1"), Some(FaultKind::Unsupported(_))));
        assert!(matches!(kind("v_mul_lo_u32 v0, v1, v2 clamp"), Some(FaultKind::UnknownInstruction(_))));
        assert!(kind("v_dual_mov_b32 v0, v1 :: v_dual_add_f32 v3, v4, v5").is_none());
    }
}
