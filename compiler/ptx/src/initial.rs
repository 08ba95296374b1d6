//! Initial values of variables.

use crate::ast::{Immediate, Initializer, Name, Variable};
use crate::types::ScalarType;

/// The bytes of an initializer, and the symbol addresses in it, which a linker or loader fills in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialValue {
    /// The bytes of the initializer. The variable may be larger; its remaining bytes are 0. The
    /// bytes of an address are 0 here.
    pub bytes: Vec<u8>,
    /// Each eight-byte address: its offset in `bytes`, the symbol, and a byte offset from the
    /// symbol.
    pub addresses: Vec<(usize, Name, i64)>,
}

impl Variable {
    /// The initial value of the variable.
    ///
    /// # Errors
    /// The initializer contains an address that is masked or not eight bytes wide. The message
    /// names it.
    pub fn initial_value(&self) -> Result<InitialValue, String> {
        let mut value = InitialValue::default();
        if let Some(initializer) = &self.initializer {
            value.append(initializer, self.ty)?;
        }
        Ok(value)
    }
}

impl InitialValue {
    fn append(&mut self, initializer: &Initializer, ty: ScalarType) -> Result<(), String> {
        match initializer {
            Initializer::List(items) => items.iter().try_for_each(|item| self.append(item, ty)),
            Initializer::Symbol { name, mask: Some(_), .. } => Err(format!("a part of the address of `{name}`")),
            Initializer::Symbol { name, .. } if ty.bytes() != 8 => {
                Err(format!("the address of `{name}` in {} bytes", ty.bytes()))
            }
            Initializer::Symbol { name, offset, mask: None, .. } => {
                self.addresses.push((self.bytes.len(), name.clone(), *offset));
                self.bytes.extend([0; 8]);
                Ok(())
            }
            Initializer::Immediate(value) => {
                self.bytes.extend_from_slice(&bits(*value, ty).to_le_bytes()[..ty.bytes() as usize]);
                Ok(())
            }
        }
    }
}

/// The bits of a literal in type `ty`: floats are converted, integers truncated by the caller.
fn bits(value: Immediate, ty: ScalarType) -> i128 {
    match (value, ty) {
        (Immediate::Int(value), _) => value,
        (Immediate::F32(bits), ScalarType::F64) => f64::from(f32::from_bits(bits)).to_bits().into(),
        (Immediate::F32(bits), _) => bits.into(),
        (Immediate::F64(bits), ScalarType::F32) => (f64::from_bits(bits) as f32).to_bits().into(),
        (Immediate::F64(bits), _) => bits.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Item, parse};

    fn initial_value(declaration: &str) -> Result<InitialValue, String> {
        let module = parse(&format!(".version 7.0\n.target sm_80\n.address_size 64\n{declaration}\n")).unwrap();
        module.items.iter().find_map(Item::variable).unwrap().initial_value()
    }

    #[test]
    fn numbers_take_the_type_of_their_variable() {
        let bytes = |declaration: &str| initial_value(declaration).unwrap().bytes;
        assert_eq!(bytes(".global .u16 a[4] = {1, -1};"), [1, 0, 255, 255]);
        assert_eq!(bytes(".global .f32 a = 0.5;"), 0.5f32.to_le_bytes());
        assert_eq!(bytes(".const .f64 a = 0f3F000000;"), 0.5f64.to_le_bytes());
        assert_eq!(bytes(".global .u32 a;"), []);
    }

    #[test]
    fn addresses_are_reported_as_symbols() {
        let value = initial_value(".global .u64 a[2] = {7, generic(other)+16};").unwrap();
        assert_eq!((value.bytes.len(), value.bytes[0]), (16, 7));
        assert_eq!(value.addresses, [(8, Name::new("other"), 16)]);
        assert_eq!(initial_value(".global .u32 a = other;"), Err("the address of `other` in 4 bytes".to_owned()));
    }
}
