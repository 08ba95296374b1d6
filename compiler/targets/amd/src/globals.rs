//! Variables of a module. The code object has one definition of each, under its name in the PTX
//! text, by which a loader finds it.

use crate::emit::quoted;
use crate::error::AmdError;
use atoll_emit::typed_literal;
use atoll_lower::variables::{self, Value};
use atoll_ptx::{Module, Name, Variable};
use std::collections::BTreeMap;

/// Definitions of the variables of a module.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    definitions: BTreeMap<Name, String>,
}

impl Globals {
    /// All definitions.
    pub(crate) fn text(&self) -> String {
        self.definitions.values().map(String::as_str).collect()
    }
}

/// Collects the variables of a module.
pub(crate) fn definitions(module: &Module) -> Result<Globals, AmdError> {
    let mut globals = Globals::default();
    for (name, variable, line) in variables::all(module) {
        let text = definition(module, &name, variable, line)?;
        globals.definitions.insert(name, text);
    }
    Ok(globals)
}

fn definition(module: &Module, name: &Name, variable: &Variable, line: u32) -> Result<String, AmdError> {
    let value = Value::whole(module, variable, crate::TARGET, line)?;
    let literal = typed_literal(&value, "ptr addrspace(1)", quoted);
    let align = variable.alignment().max(16);
    Ok(format!("@{} = protected addrspace(1) global {literal}, align {align}\n", quoted(name)))
}
