//! Compares kernels with the reference interpreter. Cases alternate between the CPU levels of this
//! machine; with `ALL_LEVELS=1` each runs at every level, and `CASE=<prefix of a name>` selects
//! some of them.

mod common;

use atoll_codegen::TargetDescription;
use common::device::{check, check_as, levels};
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

/// Products and convolutions as they are written for NVIDIA GPUs, with loads ahead and with slices,
/// run on this machine's lowest level.
#[test]
fn products_for_gpus() {
    let only = std::env::var("CASE").unwrap_or_default();
    let (level, _) = levels()[0];
    let models = [cases::products(), cases::convolutions(), cases::volumes()].concat();
    // A product of few filters whose depth is more than a block should compute.
    let always = |model: &Model| model.graph.name == "conv_deep_few";
    let sampled = models.iter().enumerate().filter(|(index, model)| index % 3 == 0 || always(model));
    for (_, model) in sampled.filter(|(_, model)| model.graph.name.starts_with(&only)) {
        check_as(model, level, &TargetDescription::nvidia_sm75());
    }
}

#[test]
fn nests() {
    run(common::nests::nests());
}

#[test]
fn indexing() {
    run(common::indexing::indexing());
}
