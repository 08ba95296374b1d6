//! The text of kernels: it assembles, it verifies, and it equals the reviewed golden files.

mod common;

use atoll_codegen::{Emitted, GemmTile, HostLevel, TargetDescription, emit, schedule};
use atoll_frontend::tensor_graph::{MatMul, Op, PointOp, PointProgram};
use atoll_kgraph::{Argument, DType};
use atoll_ptx::{Item, ItemKind, Module, Name};
use atoll_target_nvidia::find_ptxas;
use common::{Model, cases};

fn emitted(model: &Model, target: &TargetDescription) -> Emitted {
    let schedule = schedule(&model.graph).unwrap_or_else(|e| panic!("{}: {e}", model.graph.name));
    emit(&schedule, target).unwrap_or_else(|e| panic!("{}: {e}", model.graph.name))
}

/// All kernels of several cases in one module; the name of the case is part of the kernel's name.
fn joined(models: &[Model], target: &TargetDescription) -> Module {
    let mut whole: Option<Module> = None;
    for model in models {
        let module = emitted(model, target).module;
        let whole = whole.get_or_insert_with(|| Module { items: Vec::new(), ..module.clone() });
        for item in module.items {
            match item.kind {
                ItemKind::Function(mut function) => {
                    function.name = Name::from(format!("{}_{}", model.graph.name, function.name));
                    whole.items.push(Item::built(ItemKind::Function(function)));
                }
                kind if whole.items.len() < 3 => whole.items.push(Item::built(kind)),
                _ => {}
            }
        }
    }
    whole.expect("there are cases")
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped check must be seen")]
fn every_kernel_assembles_without_spills() {
    let Some(ptxas) = find_ptxas() else {
        eprintln!("SKIPPED: ptxas is not installed, no kernel was assembled");
        return;
    };
    // All cases for the lowest architecture; for newer ones, those that use most registers.
    let demanding = [cases::products(), cases::convolutions()].concat();
    std::thread::scope(|scope| {
        for (arch, models) in [("sm_75", cases::all()), ("sm_80", demanding.clone()), ("sm_90", demanding)] {
            let ptxas = &ptxas;
            scope.spawn(move || {
                let text = atoll_ptx::print(&joined(&models, &TargetDescription::nvidia_sm75()));
                let report = ptxas.assemble(&text, arch).unwrap_or_else(|e| panic!("{arch}: {e}")).report;
                for (name, kernel) in &report.kernels {
                    assert_eq!((kernel.spill_store_bytes, kernel.spill_load_bytes), (0, 0), "{name} spills on {arch}");
                }
            });
        }
    });
}

#[test]
fn every_module_verifies_after_printing_and_parsing() {
    for target in [
        TargetDescription::host(HostLevel::V3),
        TargetDescription::host(HostLevel::V4),
        TargetDescription::nvidia_sm75(),
    ] {
        let module = joined(&cases::all(), &target);
        atoll_ptx::verify(&module).unwrap_or_else(|e| panic!("{}: {e}", target.name));
        let mut parsed =
            atoll_ptx::parse(&atoll_ptx::print(&module)).unwrap_or_else(|e| panic!("{}: {e}", target.name));
        let mut built = module;
        parsed.strip_origins();
        built.strip_origins();
        assert!(parsed == built, "{}: the text does not say what was built", target.name);
    }
}

#[test]
fn launches_fit_their_kernels() {
    for target in [TargetDescription::host(HostLevel::V4), TargetDescription::nvidia_sm75()] {
        for model in cases::all() {
            let emitted = emitted(&model, &target);
            let functions: Vec<_> = emitted.module.kernels().collect();
            assert_eq!(functions.len(), emitted.kernels.len());
            for (function, kernel) in functions.iter().zip(&emitted.kernels) {
                assert_eq!(function.name, kernel.name);
                let threads: u32 = kernel.block.iter().product();
                assert!(
                    threads.is_multiple_of(32) && threads <= target.threads_max,
                    "{}: {threads} threads",
                    kernel.name
                );
            }
            for launch in emitted.launches.iter().flatten() {
                let function = functions[launch.kernel.0 as usize];
                let types: Vec<DType> = launch
                    .args
                    .iter()
                    .map(|a| match a {
                        Argument::Int { dtype, .. } => *dtype,
                        _ => DType::U64,
                    })
                    .collect();
                let declared: Vec<DType> =
                    function.params.iter().map(|p| if p.ty.bytes() == 4 { DType::I32 } else { DType::U64 }).collect();
                assert_eq!(types, declared, "{}: {}", model.graph.name, function.name);
            }
        }
    }
}

/// Compares with the file in `tests/golden`; `INSTA_UPDATE=always` accepts the new text.
fn golden(name: &str, model: &Model, target: &TargetDescription) {
    let text = atoll_ptx::print(&emitted(model, target).module);
    insta::with_settings!({ snapshot_path => "golden", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn golden_kernels() {
    let host = TargetDescription::host(HostLevel::V4);
    let mut m = Model::new("channel_bias");
    let (x, bias) = (m.x(&[2, 6, 9, 11]), m.weights(&[6, 1, 1]));
    let y = m.f32(Op::Pointwise(PointProgram::single(PointOp::Add, DType::F32, 2)), &[x, bias], &[2, 6, 9, 11]);
    golden("pointwise", &m.output(&[y]), &host);

    let mut m = Model::new("softmax");
    let x = m.x(&[7, 100]);
    let y = m.f32(Op::Softmax { axis: 1, log: false }, &[x], &[7, 100]);
    golden("softmax", &m.output(&[y]), &host);

    // A tile that is small enough to read.
    let tile = GemmTile { warps: 2, warps_max: 2, rows: 2, columns: 2, depth: 32, unroll: 4, vector_rows: true };
    let mut m = Model::new("matmul");
    let (a, b) = (m.x(&[50, 90]), m.x(&[90, 128]));
    let plain = MatMul { transpose_a: false, transpose_b: false, epilogue: PointProgram::default() };
    let y = m.f32(Op::MatMul(plain), &[a, b], &[50, 128]);
    golden("matmul", &m.output(&[y]), &TargetDescription { gemm: tile, ..TargetDescription::nvidia_sm75() });
}
