//! Compares kernels with the reference interpreter. Cases alternate between the CPU levels of this
//! machine; with `ALL_LEVELS=1` each runs at every level, and `CASE=<prefix of a name>` selects
//! some of them.

mod common;

use common::device::{check, levels};
use common::{Model, cases};

fn run(models: Vec<Model>) {
    let only = std::env::var("CASE").unwrap_or_default();
    let levels = levels();
    for (index, model) in models.iter().enumerate().filter(|(_, m)| m.graph.name.starts_with(&only)) {
        let turn = index % levels.len();
        let levels = if std::env::var_os("ALL_LEVELS").is_some() { &levels[..] } else { &levels[turn..=turn] };
        check(model, levels);
    }
}

macro_rules! families {
    ($($family:ident)*) => {
        $(
            #[test]
            fn $family() {
                run(cases::$family());
            }
        )*
    };
}

families! {
    functions integers broadcasting movement narrow reductions products
    convolutions volumes windows recurrence buffers symbolic
}

#[test]
fn nests() {
    run(common::nests::nests());
}

#[test]
fn indexing() {
    run(common::indexing::indexing());
}
