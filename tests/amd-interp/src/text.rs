//! Parses an instruction's text, as LLVM prints it, to mnemonic, operands and modifiers.

use crate::operand::Operand;

/// The lane from which a DPP instruction reads its first source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DppControl {
    QuadPerm([u8; 4]),
    RowShl(u8),
    RowShr(u8),
    RowRor(u8),
    WaveShl,
    WaveShr,
    WaveRol,
    WaveRor,
    RowMirror,
    RowHalfMirror,
    /// Lane 15 or 31 of a row goes to the following rows.
    RowBcast(u8),
    RowShare(u8),
    RowXmask(u8),
    Dpp8([u8; 8]),
}

/// Modifiers of a DPP instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dpp {
    pub(crate) control: DppControl,
    pub(crate) row_mask: u8,
    pub(crate) bank_mask: u8,
    pub(crate) bound_ctrl: bool,
    pub(crate) fetch_inactive: bool,
}

/// A part of a 32-bit register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) shift: u8,
    /// Width in bits: 8 or 16; 0 for the whole register.
    pub(crate) bits: u8,
}

/// Modifiers of an SDWA instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sdwa {
    pub(crate) dst: Part,
    pub(crate) preserve: bool,
    pub(crate) sext: bool,
    pub(crate) src: [Part; 2],
}

/// All modifiers, which follow the operands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Mods {
    pub(crate) offset: i64,
    pub(crate) offsets: [u64; 2],
    pub(crate) clamp: bool,
    /// The result is multiplied by two to this power.
    pub(crate) omod: i32,
    /// One bit per operand; the destination's bit follows those of the sources.
    pub(crate) op_sel: u32,
    pub(crate) op_sel_hi: Option<u32>,
    pub(crate) neg_lo: u32,
    pub(crate) neg_hi: u32,
    pub(crate) dpp: Option<Dpp>,
    pub(crate) sdwa: Option<Sdwa>,
    pub(crate) offen: bool,
    pub(crate) idxen: bool,
    /// Modifiers that the parser does not know.
    pub(crate) unknown: Vec<String>,
}

/// The parsed text of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) mnemonic: String,
    pub(crate) operands: Vec<Operand>,
    pub(crate) mods: Mods,
}

/// Modifiers that only control caches.
const CACHE: &[&str] = &["glc", "slc", "dlc", "sc0", "sc1", "nt"];

/// Splits at `separator`, except inside brackets.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0i32, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            c if c == separator && depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

impl Parsed {
    /// Parses one instruction. Never fails: unknown modifiers are in `mods.unknown`.
    pub(crate) fn parse(text: &str) -> Self {
        let (mnemonic, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let mut parts = split(rest, ',');
        let mut modifiers = Vec::new();
        if let Some(last) = parts.pop() {
            let mut words = split(last, ' ');
            if !words.is_empty() && !is_modifier(words[0]) {
                parts.push(words.remove(0));
            }
            modifiers = words;
        }
        let operands = parts.into_iter().map(Operand::parse).collect();
        let mut mods = Mods::default();
        for word in modifiers {
            if modifier(&mut mods, word).is_none() {
                mods.unknown.push(word.to_owned());
            }
        }
        Self { mnemonic: mnemonic.to_owned(), operands, mods }
    }
}

fn is_modifier(word: &str) -> bool {
    modifier(&mut Mods::default(), word).is_some()
}

fn number(text: &str) -> Option<i64> {
    if let Some(positive) = text.strip_prefix("-0x") {
        return i64::from_str_radix(positive, 16).ok().map(|value| -value);
    }
    match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a list such as `[1,0,3]`.
fn list(text: &str) -> Option<Vec<u8>> {
    text.strip_prefix('[')?.strip_suffix(']')?.split(',').map(|n| n.trim().parse().ok()).collect()
}

fn bits(text: &str) -> Option<u32> {
    list(text).map(|l| l.iter().enumerate().fold(0, |all, (at, &bit)| all | u32::from(bit) << at))
}

fn modifier(mods: &mut Mods, word: &str) -> Option<()> {
    let (name, value) = word.split_once(':').unwrap_or((word, ""));
    match name {
        "offset" if value.starts_with("swizzle") => {}
        "offset" => mods.offset = number(value)?,
        "offset0" => mods.offsets[0] = number(value)? as u64,
        "offset1" => mods.offsets[1] = number(value)? as u64,
        "clamp" => mods.clamp = true,
        "mul" => mods.omod = if number(value)? == 4 { 2 } else { 1 },
        "div" => mods.omod = -1,
        "op_sel" => mods.op_sel = bits(value)?,
        "op_sel_hi" => mods.op_sel_hi = Some(bits(value)?),
        "neg_lo" => mods.neg_lo = bits(value)?,
        "neg_hi" => mods.neg_hi = bits(value)?,
        "offen" => mods.offen = true,
        "idxen" => mods.idxen = true,
        "th" | "scope" => {}
        _ if CACHE.contains(&word) => {}
        _ => return dpp(mods, name, value).or_else(|| sdwa(mods, name, value)),
    }
    Some(())
}

fn dpp(mods: &mut Mods, name: &str, value: &str) -> Option<()> {
    let amount = number(value).unwrap_or(0) as u8;
    let control = match name {
        "quad_perm" => DppControl::QuadPerm(list(value)?.try_into().ok()?),
        "dpp8" => DppControl::Dpp8(list(value)?.try_into().ok()?),
        "row_shl" => DppControl::RowShl(amount),
        "row_shr" => DppControl::RowShr(amount),
        "row_ror" => DppControl::RowRor(amount),
        "wave_shl" => DppControl::WaveShl,
        "wave_shr" => DppControl::WaveShr,
        "wave_rol" => DppControl::WaveRol,
        "wave_ror" => DppControl::WaveRor,
        "row_mirror" => DppControl::RowMirror,
        "row_half_mirror" => DppControl::RowHalfMirror,
        "row_bcast" => DppControl::RowBcast(amount),
        "row_share" | "row_newbcast" => DppControl::RowShare(amount),
        "row_xmask" => DppControl::RowXmask(amount),
        _ => {
            let dpp = mods.dpp.as_mut()?;
            match name {
                "row_mask" => dpp.row_mask = amount,
                "bank_mask" => dpp.bank_mask = amount,
                "bound_ctrl" => dpp.bound_ctrl = true,
                "fi" => dpp.fetch_inactive = amount == 1,
                _ => return None,
            }
            return Some(());
        }
    };
    mods.dpp = Some(Dpp { control, row_mask: 15, bank_mask: 15, bound_ctrl: false, fetch_inactive: false });
    Some(())
}

fn sdwa(mods: &mut Mods, name: &str, value: &str) -> Option<()> {
    let mut sdwa = mods.sdwa.unwrap_or_default();
    match name {
        "dst_sel" => sdwa.dst = part(value)?,
        "src0_sel" => sdwa.src[0] = part(value)?,
        "src1_sel" => sdwa.src[1] = part(value)?,
        "dst_unused" => {
            sdwa.preserve = value == "UNUSED_PRESERVE";
            sdwa.sext = value == "UNUSED_SEXT";
        }
        _ => return None,
    }
    mods.sdwa = Some(sdwa);
    Some(())
}

fn part(text: &str) -> Option<Part> {
    let (name, number) = text.split_at_checked(5)?;
    let index: u8 = number.parse().unwrap_or(0);
    match name {
        "BYTE_" if index < 4 => Some(Part { shift: 8 * index, bits: 8 }),
        "WORD_" if index < 2 => Some(Part { shift: 16 * index, bits: 16 }),
        "DWORD" => Some(Part::default()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operand::Kind;

    #[test]
    fn modifiers_follow_the_last_operand() {
        let p = Parsed::parse("global_atomic_add v0, v[2:3], v3, off offset:-16 glc");
        assert_eq!((p.operands.len(), p.mods.offset), (4, -16));
        assert_eq!(p.operands[3].kind, Kind::Off);
        assert!(p.mods.unknown.is_empty());
        let p = Parsed::parse("v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2] row_mask:0xa bank_mask:0xf bound_ctrl:1");
        let dpp = p.mods.dpp.unwrap();
        assert_eq!((dpp.control, dpp.row_mask, dpp.bound_ctrl), (DppControl::QuadPerm([1, 0, 3, 2]), 10, true));
        let p = Parsed::parse("v_fma_f16 v0.l, v1.l, |v2.h|, -v3.l op_sel:[0,1,0,0]");
        assert_eq!((p.operands.len(), p.mods.op_sel), (4, 2));
        let p = Parsed::parse("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 5");
        assert_eq!((p.operands.len(), &p.operands[1].kind), (2, &Kind::Int(5)));
        assert_eq!(Parsed::parse("v_x v0, v1 strange:1").mods.unknown, ["strange:1"]);
    }
}
