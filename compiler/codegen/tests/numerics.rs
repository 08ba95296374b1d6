//! The kernels compute what the reference interpreter computes, on every CPU level of this machine.

mod common;

use common::{cases, device::check};

/// Whether to run a case: all, or the ones whose names start with `$CASE`.
fn wanted(name: &str) -> bool {
    std::env::var("CASE").map_or(true, |start| name.starts_with(&start))
}

macro_rules! families {
    ($($family:ident)*) => {
        $(
            #[test]
            fn $family() {
                cases::$family().iter().filter(|m| wanted(&m.graph.name)).for_each(check);
            }
        )*
    };
}

families! { functions integers broadcasting movement reductions products convolutions windows recurrence buffers symbolic }
