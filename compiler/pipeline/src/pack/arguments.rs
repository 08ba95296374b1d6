//! Converts arguments to the types of kernel parameters.

use super::manifest::Value;
use atoll_kgraph::{Argument, DType, Expr};
use atoll_ptx::{ScalarType, Variable};

/// Converts a value to the type of a parameter.
pub(super) fn literal(
    parameter: &Variable,
    value: &Value,
    expr: impl Fn(&Value) -> Result<Expr, String>,
) -> Result<Argument, String> {
    use ScalarType::{B32, B64, F32, F64, S32, S64, U32, U64};
    let integer = |dtype| Ok(Argument::Int { dtype, value: expr(value)? });
    let float = || match value {
        Value::Integer(value) => Ok(*value as f64),
        Value::Float(value) => Ok(*value),
        Value::Text(text) => text.parse().map_err(|_| format!("`{text}` is not a number")),
    };
    if !parameter.dimensions.is_empty() || parameter.vector.is_some() || parameter.opaque.is_some() {
        return Err("give a structure or vector as `{ bytes = \"…\" }`; textures are not supported".into());
    }
    match parameter.ty {
        U32 | B32 => integer(DType::U32),
        S32 => integer(DType::I32),
        U64 | B64 => integer(DType::U64),
        S64 => integer(DType::I64),
        F32 => Ok(Argument::F32 { bits: (float()? as f32).to_bits() }),
        F64 => Ok(Argument::F64 { bits: float()?.to_bits() }),
        other => Err(format!("give a parameter of type .{other} as `{{ bytes = \"…\" }}`")),
    }
}

/// Converts hexadecimal text to the bytes of a parameter of any type.
pub(super) fn raw(parameter: &Variable, text: &str) -> Result<Argument, String> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let Some(digits) = digits.filter(|digits| !digits.is_empty() && digits.len().is_multiple_of(2)) else {
        return Err(format!("`{text}` is not two hexadecimal digits for each byte"));
    };
    if parameter.opaque.is_some() {
        return Err("textures are not supported".into());
    }
    let bytes: Vec<u8> = digits.as_chunks().0.iter().map(|&[high, low]| high << 4 | low).collect();
    let element = u64::from(parameter.ty.bytes()) * u64::from(parameter.vector.unwrap_or(1));
    let wanted = parameter.dimensions.iter().try_fold(element, |product, dimension| product.checked_mul((*dimension)?));
    match wanted {
        Some(wanted) if wanted == bytes.len() as u64 => {
            let align = parameter.align.unwrap_or(element as u32);
            Ok(Argument::Bytes { align, bytes, relocations: Vec::new() })
        }
        Some(wanted) => Err(format!("it takes {wanted} bytes, {} are given", bytes.len())),
        None => Err("its size is not declared".into()),
    }
}
