//! Module variables: `.global` and `.const` arrays, defined once in the object and shared by its
//! kernels.

use crate::emit::quoted;
use crate::error::HostError;
use atoll_emit::typed_literal;
use atoll_lower::variables::{self, Value};
use atoll_ptx::{Module, Name, StateSpace, Variable};
use std::collections::BTreeMap;

/// Definitions of the variables of a module.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    definitions: BTreeMap<Name, String>,
}

impl Globals {
    /// The declaration of a variable in a kernel's LLVM module.
    pub(crate) fn declaration(&self, name: &Name) -> String {
        format!("@{} = external hidden global i8\n", symbol(name))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// All definitions.
    pub(crate) fn all_definitions(&self) -> String {
        self.definitions.values().map(String::as_str).collect()
    }
}

fn symbol(name: &str) -> String {
    quoted(&format!("atoll_var_{name}"))
}

/// Collects the variables of a module.
pub(crate) fn definitions(module: &Module) -> Result<Globals, HostError> {
    let mut globals = Globals::default();
    for (name, variable, line) in variables::all(module) {
        let text = definition(module, &name, variable, line)?;
        globals.definitions.insert(name, text);
    }
    Ok(globals)
}

fn definition(module: &Module, name: &Name, variable: &Variable, line: u32) -> Result<String, HostError> {
    let value = Value::whole(module, variable, crate::TARGET, line)?;
    // Addresses are relocated when the object is loaded, so the variable must be writable.
    let kind = if variable.space == StateSpace::Const && value.addresses.is_empty() { "constant" } else { "global" };
    let (literal, align) = (typed_literal(&value, "ptr", symbol), variable.alignment().max(16));
    Ok(format!("@{} = hidden {kind} {literal}, align {align}\n", symbol(name)))
}
