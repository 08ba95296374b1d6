//! Contexts. They exist only in this library: a session has one context on the server.

use atoll_session::Code;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The number of the primary context.
pub(crate) const PRIMARY: u32 = 1;

thread_local! {
    /// The context stack of this thread; the last one is current.
    static STACK: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// The contexts of the process.
#[derive(Debug)]
pub(crate) struct Contexts {
    /// Number of times that the primary context is retained. The context exists while this is not
    /// 0.
    retained: u64,
    /// Whether the runtime has the handle of the primary context, which may then be current before it
    /// exists.
    is_revealed: bool,
    primary_flags: u32,
    /// Flags of the other contexts, by number.
    others: BTreeMap<u32, u32>,
    last: u32,
}

impl Default for Contexts {
    fn default() -> Contexts {
        Contexts { retained: 0, is_revealed: false, primary_flags: 0, others: BTreeMap::new(), last: PRIMARY }
    }
}

impl Contexts {
    pub(crate) fn retain(&mut self) {
        self.retained += 1;
    }

    /// Releases the primary context once. Returns true if it no longer exists.
    pub(crate) fn release(&mut self) -> Result<bool, Code> {
        self.retained = self.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        Ok(self.retained == 0)
    }

    /// Destroys the primary context. Returns true if it existed.
    pub(crate) fn reset(&mut self) -> bool {
        std::mem::take(&mut self.retained) > 0
    }

    /// Notes that the runtime got the handle of the primary context.
    pub(crate) fn reveal(&mut self) {
        self.is_revealed = true;
    }

    /// Returns an error if a context cannot be current.
    pub(crate) fn check_usable(&self, context: u32) -> Result<(), Code> {
        if context == PRIMARY && self.is_revealed { Ok(()) } else { self.flags(context).map(drop) }
    }

    pub(crate) fn set_primary_flags(&mut self, flags: u32) {
        self.primary_flags = flags;
    }

    /// Flags of the primary context, and whether it exists.
    pub(crate) fn primary(&self) -> (u32, bool) {
        (self.primary_flags, self.retained > 0)
    }

    pub(crate) fn create(&mut self, flags: u32) -> Result<u32, Code> {
        self.last = self.last.checked_add(1).ok_or(Code::OUT_OF_MEMORY)?;
        self.others.insert(self.last, flags);
        Ok(self.last)
    }

    pub(crate) fn destroy(&mut self, context: u32) -> Result<(), Code> {
        self.others.remove(&context).map(drop).ok_or(Code::INVALID_CONTEXT)
    }

    /// Flags of a context. An error if it does not exist.
    pub(crate) fn flags(&self, context: u32) -> Result<u32, Code> {
        let primary = (context == PRIMARY && self.retained > 0).then_some(self.primary_flags);
        primary.or_else(|| self.others.get(&context).copied()).ok_or(Code::INVALID_CONTEXT)
    }

    /// The current context of this thread.
    pub(crate) fn current(&self) -> Result<u32, Code> {
        let context = change_stack(|stack| stack.last().copied())?.ok_or(Code::INVALID_CONTEXT)?;
        self.flags(context).map_err(|_| Code::CONTEXT_IS_DESTROYED)?;
        Ok(context)
    }
}

/// Reads or changes the context stack of this thread. An error while the thread ends.
pub(crate) fn change_stack<R>(change: impl FnOnce(&mut Vec<u32>) -> R) -> Result<R, Code> {
    STACK.try_with(|stack| change(&mut stack.borrow_mut())).map_err(|_| Code(atoll_cuda_api::error::DEINITIALIZED))
}
