//! Variables and kernel parameters, and their places in the state spaces.

use super::*;

impl<'m> Reader<'m> {
    pub(super) fn params(&mut self, function: &Function) -> Result<(), LowerError> {
        let mut offset = 0u32;
        for param in &function.params {
            let bytes = param.bytes().and_then(|b| u32::try_from(b).ok());
            let bytes = bytes.ok_or_else(|| self.malformed(0, format!("parameter `{}` is too large", param.name)))?;
            offset = offset.next_multiple_of(param.alignment().max(1));
            self.innermost().symbols.insert(param.name.clone(), Symbol::Param(offset));
            offset += bytes;
        }
        self.program.params_bytes = offset;
        Ok(())
    }

    pub(super) fn module_variables(&mut self) -> Result<(), LowerError> {
        for item in &self.module.items {
            if let ItemKind::Variable(variable) = &item.kind {
                self.variable(variable, item.origin.line)?;
            }
        }
        Ok(())
    }

    /// Declares a variable and allocates it.
    pub(super) fn variable(&mut self, variable: &'m Variable, line: u32) -> Result<(), LowerError> {
        if variable.space == StateSpace::Tex {
            // An error only if it is used.
            return Ok(());
        }
        let bytes = variable.bytes().and_then(|b| u32::try_from(b).ok());
        let bytes = bytes.ok_or_else(|| self.malformed(line, format!("variable `{}` is too large", variable.name)))?;
        let align = variable.alignment().max(1);
        let symbol = match variable.space {
            StateSpace::Shared if variable.dimensions.contains(&None) => Symbol::Dynamic(0),
            StateSpace::Shared => match self.statics.get(&std::ptr::from_ref(variable)) {
                Some(known) => known.clone(),
                None => Symbol::Shared(reserve(&mut self.program.shared_bytes, bytes, align)),
            },
            StateSpace::Local => Symbol::Local(self.reserve_local(bytes, align)),
            StateSpace::Global | StateSpace::Const => {
                let own = self.of_functions.get(&std::ptr::from_ref(variable));
                Symbol::Global(own.unwrap_or(&variable.name).clone(), 0)
            }
            other => return Err(self.unsupported(line, format!("variables of space .{other} here"))),
        };
        self.statics.insert(std::ptr::from_ref(variable), symbol.clone());
        self.innermost().symbols.insert(variable.name.clone(), symbol);
        Ok(())
    }

    pub(super) fn reserve_local(&mut self, bytes: u32, align: u32) -> u32 {
        let at = reserve(&mut self.local_top, bytes, align);
        self.program.local_bytes = self.program.local_bytes.max(self.local_top);
        at
    }
}

/// Reserves `bytes` at the end of an area.
fn reserve(area: &mut u32, bytes: u32, align: u32) -> u32 {
    let at = area.next_multiple_of(align);
    *area = at + bytes;
    at
}
