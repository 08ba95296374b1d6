//! Initial values of module variables.

use crate::read::function_address;
use atoll_ptx::{InitialValue, Item, Module, Name, StateSpace, Variable};

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its bytes, those of addresses of variables 0.
    pub bytes: Vec<u8>,
    /// Addresses of other variables: where each of them lies in `bytes`, the variable, and an offset from it.
    pub addresses: Vec<(usize, Name, i64)>,
}

impl Value {
    /// Its initial value, with the addresses of functions filled in; the error says what is not supported.
    ///
    /// # Errors
    /// What has an address that no variable or function of the module has.
    pub fn of(module: &Module, variable: &Variable) -> Result<Value, String> {
        let InitialValue { mut bytes, mut addresses } = variable.initial_value()?;
        addresses.retain(|(at, name, offset)| {
            let address = function_address(module, name);
            address.inspect(|address| bytes[*at..at + 8].copy_from_slice(&address.wrapping_add_signed(*offset).to_le_bytes())).is_none()
        });
        let is_variable = |name: &Name| {
            module
                .items
                .iter()
                .filter_map(Item::variable)
                .any(|v| v.name == *name && matches!(v.space, StateSpace::Global | StateSpace::Const))
        };
        match addresses.iter().find(|(_, name, _)| !is_variable(name)) {
            Some((_, name, _)) => Err(format!("the address of `{name}` in an initialiser")),
            None => Ok(Value { bytes, addresses }),
        }
    }
}
