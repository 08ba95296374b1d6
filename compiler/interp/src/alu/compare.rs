//! `setp`, `set`, `testp`, `copysign`.

use super::{Alu, Decoded, format_of, int, low, only};
use crate::format::Format;
use atoll_ptx::types::TypeClass;
use atoll_ptx::{Instruction, ScalarType};
use std::cmp::Ordering;

/// Names of the comparison operators.
const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

/// Whether a comparison holds for two source values.
type Test = Box<dyn Fn(u64, u64) -> bool + Send + Sync>;

pub(super) fn decode(i: &Instruction) -> Decoded {
    let alu = match i.opcode.as_str() {
        "setp" => setp(i)?,
        "set" => set(i)?,
        "testp" => testp(i)?,
        "copysign" => {
            only(i, &[])?;
            let format = i.ty().and_then(format_of).ok_or("its type is not supported")?;
            let sign = 1u64 << (format.bits() - 1);
            Alu::new(2, move |s| s[1] & !sign | s[0] & sign)
        }
        _ => return Ok(None),
    };
    Ok(Some(alu))
}

/// Whether a comparison holds for an ordering; `None` is unordered (a NaN).
fn holds(comparison: &str, order: Option<Ordering>) -> bool {
    let Some(order) = order else {
        return matches!(comparison, "equ" | "neu" | "ltu" | "leu" | "gtu" | "geu" | "nan");
    };
    match comparison {
        "eq" | "equ" => order.is_eq(),
        "ne" | "neu" => order.is_ne(),
        "lt" | "lo" | "ltu" => order.is_lt(),
        "le" | "ls" | "leu" => order.is_le(),
        "gt" | "hi" | "gtu" => order.is_gt(),
        "ge" | "hs" | "geu" => order.is_ge(),
        "num" => true,
        _ => false,
    }
}

/// The ordering of two values of a format; `None` if one is a NaN.
pub(super) fn order(format: Format, a: u64, b: u64) -> Option<Ordering> {
    format.unpack(a).compare(format.unpack(b))
}

fn test(i: &Instruction, t: ScalarType) -> Result<Test, String> {
    let name = i
        .modifiers
        .iter()
        .find(|m| COMPARISONS.contains(&m.as_str()))
        .ok_or("its comparison is not supported")?
        .clone();
    let flush = i.has("ftz");
    // `lo`, `ls`, `hi`, `hs` require an unsigned type, so the type alone decides for integers.
    if let Some(format) = format_of(t) {
        let cut = move |v: u64| if flush { format.flush(v) } else { v };
        return Ok(Box::new(move |a, b| holds(&name, order(format, cut(a), cut(b)))));
    }
    if matches!(t.class(), TypeClass::Float | TypeClass::Predicate) || t == ScalarType::B128 {
        return Err(format!("comparison of .{t} is not supported"));
    }
    Ok(Box::new(move |a, b| holds(&name, Some(int(t, a).cmp(&int(t, b))))))
}

/// The Boolean operation that combines a comparison with a predicate.
fn combination(i: &Instruction) -> Option<fn(bool, bool) -> bool> {
    i.modifiers.iter().find_map(|m| match m.as_str() {
        "and" => Some((|a, b| a & b) as fn(bool, bool) -> bool),
        "or" => Some(|a, b| a | b),
        "xor" => Some(|a, b| a ^ b),
        _ => None,
    })
}

fn allowed() -> Vec<&'static str> {
    COMPARISONS.into_iter().chain(["and", "or", "xor", "ftz"]).collect()
}

fn setp(i: &Instruction) -> Result<Alu, String> {
    only(i, &allowed())?;
    let t = i.ty().ok_or("its type is not supported")?;
    let test = test(i, t)?;
    Ok(match combination(i) {
        None => Alu::pair(2, move |s| {
            let p = test(s[0], s[1]);
            [p.into(), (!p).into()]
        }),
        Some(combine) => Alu::pair(3, move |s| {
            let (p, c) = (test(s[0], s[1]), s[2] != 0);
            [combine(p, c).into(), combine(!p, c).into()]
        }),
    })
}

/// `set.cmp.dtype.stype`: all ones or 1.0 if true, 0 if false.
fn set(i: &Instruction) -> Result<Alu, String> {
    only(i, &allowed())?;
    let types: Vec<ScalarType> = i.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
    let &[to, from] = types.as_slice() else { return Err("it needs two types".into()) };
    let test = test(i, from)?;
    let yes = match format_of(to) {
        Some(format) => format.round_f64(1.0),
        None if to.class() == TypeClass::Float => return Err(format!("set to .{to} is not supported")),
        None => low(to.bits(), u64::MAX),
    };
    let combine = combination(i);
    Ok(Alu::new(2 + usize::from(combine.is_some()), move |s| {
        let p = test(s[0], s[1]);
        if combine.map_or(p, |combine| combine(p, s[2] != 0)) { yes } else { 0 }
    }))
}

fn testp(i: &Instruction) -> Result<Alu, String> {
    let kinds = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
    only(i, &kinds)?;
    let format = i.ty().and_then(format_of).ok_or("its type is not supported")?;
    let kind = i.modifiers.iter().find(|m| kinds.contains(&m.as_str())).ok_or("its test is not supported")?.clone();
    Ok(Alu::new(1, move |s| {
        let value = format.to_f64(s[0]);
        let subnormal = format.flush(s[0]) != s[0];
        let yes = match kind.as_str() {
            "finite" => value.is_finite(),
            "infinite" => value.is_infinite(),
            "number" => !value.is_nan(),
            "notanumber" => value.is_nan(),
            "normal" => value.is_finite() && value != 0.0 && !subnormal,
            _ => subnormal,
        };
        yes.into()
    }))
}
