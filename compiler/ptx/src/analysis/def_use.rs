//! Where each register is written and read.

use super::code::{Code, RegisterId, StatementId};

/// The statements that write and read each register, in source order. Registers are not in SSA
/// form: to find the write that reaches a read, use the control-flow graph.
#[derive(Clone, Debug)]
pub struct DefUse {
    defs: Vec<Vec<StatementId>>,
    uses: Vec<Vec<StatementId>>,
}

impl DefUse {
    /// Collects the definitions and uses of every register of `code`.
    pub fn of(code: &Code<'_>) -> DefUse {
        let mut sites =
            DefUse { defs: vec![Vec::new(); code.registers().len()], uses: vec![Vec::new(); code.registers().len()] };
        for (id, _) in code.statements() {
            for access in code.accesses(id) {
                let register = access.register.index();
                if access.role.writes() && sites.defs[register].last() != Some(&id) {
                    sites.defs[register].push(id);
                }
                if access.role.reads() && sites.uses[register].last() != Some(&id) {
                    sites.uses[register].push(id);
                }
            }
        }
        sites
    }

    /// The statements that write a register, including partial and guarded writes.
    pub fn defs(&self, register: RegisterId) -> &[StatementId] {
        &self.defs[register.index()]
    }

    /// The statements that read a register.
    pub fn uses(&self, register: RegisterId) -> &[StatementId] {
        &self.uses[register.index()]
    }

    /// The only statement that writes a register; `None` if there are none or several.
    pub fn single_def(&self, register: RegisterId) -> Option<StatementId> {
        match self.defs(register) {
            [one] => Some(*one),
            _ => None,
        }
    }
}
