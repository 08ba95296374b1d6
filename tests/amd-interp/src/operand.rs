//! Operands of instructions, and the types by which instructions read them.

/// Scalar registers have the numbers of the encoding: the SGPRs from 0, then these.
pub(crate) const FLAT_SCRATCH: u8 = 102;
pub(crate) const XNACK_MASK: u8 = 104;
pub(crate) const VCC: u8 = 106;
pub(crate) const TTMP: u8 = 108;
pub(crate) const M0: u8 = 124;
pub(crate) const EXEC: u8 = 126;

/// How an instruction reads a source or writes a destination. The type decides which value an
/// inline constant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    B16,
    F16,
    B32,
    F32,
    B64,
    I64,
    F64,
    /// Two 16-bit integers.
    P16,
    /// Two f16.
    PF16,
}

impl Ty {
    /// Width of a value in bits.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Ty::B16 | Ty::F16 => 16,
            Ty::B64 | Ty::I64 | Ty::F64 => 64,
            Ty::B32 | Ty::F32 | Ty::P16 | Ty::PF16 => 32,
        }
    }

    /// Whether output modifiers apply to a result of this type.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Ty::F16 | Ty::F32 | Ty::F64 | Ty::PF16)
    }
}

/// The kind of an operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Vector {
        first: u16,
        count: u8,
    },
    Accumulator {
        first: u16,
        count: u8,
    },
    /// Half of a VGPR.
    Half {
        register: u16,
        high: bool,
    },
    Scalar {
        first: u8,
        count: u8,
    },
    /// An inline integer.
    Int(i64),
    /// A literal constant, which is printed in hexadecimal.
    Literal(u64),
    /// An inline floating-point constant.
    Float(f64),
    SharedBase,
    PrivateBase,
    /// `src_shared_limit`, `src_private_limit`.
    ApertureLimit,
    Scc,
    Vccz,
    Execz,
    Off,
    Null,
    /// Any other operand, which the operation reads from the encoding.
    Name,
}

/// An operand with its source modifiers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operand {
    pub(crate) kind: Kind,
    pub(crate) neg: bool,
    pub(crate) abs: bool,
    pub(crate) sext: bool,
}

impl Operand {
    /// An operand without modifiers.
    pub(crate) fn plain(kind: Kind) -> Self {
        Self { kind, neg: false, abs: false, sext: false }
    }

    /// Parses an operand in LLVM's notation.
    pub(crate) fn parse(text: &str) -> Self {
        let mut operand = Self::plain(Kind::Name);
        let mut rest = text;
        if let Some(inner) = wrapped(rest, "neg(", ")") {
            (operand.neg, rest) = (true, inner);
        }
        if let Some(inner) = rest.strip_prefix('-').filter(|r| !r.starts_with(|c: char| c.is_ascii_digit())) {
            (operand.neg, rest) = (true, inner);
        }
        if let Some(inner) = wrapped(rest, "|", "|").or_else(|| wrapped(rest, "abs(", ")")) {
            (operand.abs, rest) = (true, inner);
        }
        if let Some(inner) = wrapped(rest, "sext(", ")") {
            (operand.sext, rest) = (true, inner);
        }
        for prefix in ["lit(", "lit64("] {
            rest = wrapped(rest, prefix, ")").unwrap_or(rest);
        }
        operand.kind = kind(rest);
        operand
    }

    /// Number of 32-bit registers; 1 for constants.
    pub(crate) fn registers(&self) -> u32 {
        match self.kind {
            Kind::Vector { count, .. } | Kind::Accumulator { count, .. } | Kind::Scalar { count, .. } => count.into(),
            _ => 1,
        }
    }
}

fn wrapped<'a>(text: &'a str, prefix: &str, suffix: &str) -> Option<&'a str> {
    text.strip_prefix(prefix)?.strip_suffix(suffix)
}

fn kind(text: &str) -> Kind {
    named(text).or_else(|| register(text)).or_else(|| number(text)).unwrap_or(Kind::Name)
}

fn named(text: &str) -> Option<Kind> {
    let scalar = |first, count| Some(Kind::Scalar { first, count });
    match text {
        "vcc" => scalar(VCC, 2),
        "vcc_lo" => scalar(VCC, 1),
        "vcc_hi" => scalar(VCC + 1, 1),
        "exec" => scalar(EXEC, 2),
        "exec_lo" => scalar(EXEC, 1),
        "exec_hi" => scalar(EXEC + 1, 1),
        "m0" => scalar(M0, 1),
        "flat_scratch" => scalar(FLAT_SCRATCH, 2),
        "flat_scratch_lo" => scalar(FLAT_SCRATCH, 1),
        "flat_scratch_hi" => scalar(FLAT_SCRATCH + 1, 1),
        "xnack_mask" => scalar(XNACK_MASK, 2),
        "xnack_mask_lo" => scalar(XNACK_MASK, 1),
        "xnack_mask_hi" => scalar(XNACK_MASK + 1, 1),
        "scc" | "src_scc" => Some(Kind::Scc),
        "vccz" | "src_vccz" => Some(Kind::Vccz),
        "execz" | "src_execz" => Some(Kind::Execz),
        "src_shared_base" => Some(Kind::SharedBase),
        "src_private_base" => Some(Kind::PrivateBase),
        "src_shared_limit" | "src_private_limit" => Some(Kind::ApertureLimit),
        "off" => Some(Kind::Off),
        "null" => Some(Kind::Null),
        _ => None,
    }
}

fn register(text: &str) -> Option<Kind> {
    let (file, rest) = ["ttmp", "v", "a", "s"].iter().find_map(|f| Some((*f, text.strip_prefix(f)?)))?;
    let (first, count) = match wrapped(rest, "[", "]") {
        None if rest.ends_with(".l") || rest.ends_with(".h") => {
            let register: u16 = rest[..rest.len() - 2].parse().ok().filter(|&r| r < 256)?;
            return (file == "v").then_some(Kind::Half { register, high: rest.ends_with(".h") });
        }
        None => (rest.parse().ok()?, 1u16),
        Some(range) => {
            let (first, last) = range.split_once(':').unwrap_or((range, range));
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            (first, last.checked_sub(first)?.checked_add(1)?)
        }
    };
    let last = first.checked_add(count)?;
    let small = count as u8;
    match file {
        "v" if last <= 256 && count <= 64 => Some(Kind::Vector { first, count: small }),
        "a" if last <= 256 && count <= 64 => Some(Kind::Accumulator { first, count: small }),
        "s" if last <= 106 => Some(Kind::Scalar { first: first as u8, count: small }),
        "ttmp" if last <= 16 => Some(Kind::Scalar { first: TTMP + first as u8, count: small }),
        _ => None,
    }
}

fn number(text: &str) -> Option<Kind> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(Kind::Literal);
    }
    if let Some(hex) = text.strip_prefix("-0x") {
        return i64::from_str_radix(hex, 16).ok().map(|value| Kind::Int(-value));
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return None;
    }
    text.parse().ok().map(Kind::Int).or_else(|| text.parse().ok().map(Kind::Float))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_read_as_llvm_prints_them() {
        let parse = Operand::parse;
        assert_eq!(parse("v[4:7]").kind, Kind::Vector { first: 4, count: 4 });
        assert_eq!(parse("v2.h").kind, Kind::Half { register: 2, high: true });
        assert_eq!(parse("vcc_lo").kind, Kind::Scalar { first: VCC, count: 1 });
        assert_eq!(parse("-16").kind, Kind::Int(-16));
        assert_eq!(parse("-4.0").kind, Kind::Float(-4.0));
        assert_eq!(parse("0x3f800000").kind, Kind::Literal(0x3f80_0000));
        assert_eq!(parse("-0x10").kind, Kind::Int(-16));
        let both = parse("-|v1|");
        assert!(both.neg && both.abs && both.kind == Kind::Vector { first: 1, count: 1 });
        assert!(parse("sext(v1)").sext);
        assert_eq!(parse("v256").kind, Kind::Name);
        assert_eq!(parse("s[3:1]").kind, Kind::Name);
    }
}
