//! The pass pipeline as callers use it: reports, hooks and errors.

use atoll_kgraph::{preempt_params, virtual_params};
use atoll_passes::{
    NotPreemptible, PASSES, PassError, PassOptions, Preemption, SharedError, TransformOptions, TransformReport,
    Virtualization, transform, transform_with,
};
use atoll_ptx::{Module, ScalarType, parse, print};

fn source(body: &str) -> String {
    format!(".version 7.0\n.target sm_75\n.address_size 64\n{body}")
}

fn run(source: &str) -> Result<(TransformReport, Module), PassError> {
    let mut module = parse(source).expect("the test's PTX reads well");
    let report = transform(&mut module, &TransformOptions::default(), &mut |_, _| {})?;
    Ok((report, module))
}

#[test]
fn appended_parameters_lie_as_the_kernel_graph_says() {
    let (report, module) = run(&source(".entry k(.param .u32 a, .param .u16 b)\n{\nret;\n}")).expect("a plain kernel");
    let kernel = module.kernels().next().expect("the kernel");
    let appended: Vec<(u32, ScalarType)> = kernel.params[2..]
        .iter()
        .map(|p| p.ty)
        .scan(8_u32, |end, ty| Some((end.next_multiple_of(ty.bytes()), ty)).inspect(|(at, _)| *end = at + ty.bytes()))
        .collect();
    let start = report.kernels[0].preempt_offset().expect("the kernel has the flag");
    assert_eq!(start, 8);
    assert_eq!(
        appended,
        [
            (start + preempt_params::EPOCH_WORD, ScalarType::U64),
            (start + preempt_params::EVICTED_WORD, ScalarType::U64),
            (start + preempt_params::PROGRESS, ScalarType::U64),
            (start + preempt_params::ISSUED_EPOCH, ScalarType::U32),
        ]
    );
    assert_eq!(report.kernels[0].params_bytes, start + preempt_params::BYTES);
}

#[test]
fn the_hook_sees_each_pass_that_ran_in_order() {
    let mut module = parse(&source(".entry k()\n{\n.shared .b32 word;\nret;\n}")).expect("valid");
    let mut seen = Vec::new();
    transform(&mut module, &TransformOptions::default(), &mut |pass, module| {
        seen.push((pass.to_owned(), print(module)))
    })
    .expect("a plain kernel");
    assert_eq!(
        seen.iter().map(|(pass, _)| pass.as_str()).collect::<Vec<_>>(),
        ["inject_preempt_flag", "shared_to_dynamic", "reduce_divisions"]
    );
    assert!(seen[0].1.contains(".shared .b32 word") && !seen[1].1.contains(".shared .b32 word"));

    let before = print(&module);
    let report = transform(&mut module, &TransformOptions::NONE, &mut |pass, _| panic!("{pass} was not asked for"))
        .expect("nothing to do");
    assert_eq!(report.kernels[0].preemption, Preemption::NotAsked);
    assert_eq!(print(&module), before);
}

#[test]
fn the_output_parses_back_to_the_same_text() {
    let (_, module) = run(&source(
        ".entry k()\n{\n.reg .pred %p<2>;\n.shared .b32 word;\nst.shared.u32 [word], 1;\nbar.sync 0;\nret;\n}",
    ))
    .expect("valid");
    let text = print(&module);
    assert_eq!(print(&parse(&text).expect("our own text")), text);
}

#[test]
fn a_kernel_is_transformed_once() {
    let (_, mut module) = run(&source(".entry k()\n{\nret;\n}")).expect("a plain kernel");
    let again = transform(&mut module, &TransformOptions::default(), &mut |_, _| {});
    assert!(matches!(again, Err(PassError::AlreadyPreemptible { kernel }) if kernel == "k"));
}

#[test]
fn parameter_lists_are_bounded_by_version() {
    let long = ".entry k(.param .b8 a[4080])\n{\nret;\n}";
    let (report, _) = run(&source(long)).expect("valid");
    assert_eq!(
        report.kernels[0].preemption,
        Preemption::NotPreemptible(NotPreemptible::TooManyParameters { bytes: 4108, limit: 4096 })
    );
    let (report, _) = run(&source(long).replace("7.0", "8.1")).expect("valid");
    assert_eq!(report.kernels[0].preempt_offset(), Some(4080));
}

#[test]
fn kernels_with_32_bit_addresses_are_not_preemptible() {
    let (report, _) = run(".version 7.0\n.target sm_75\n.address_size 32\n.entry k()\n{\nret;\n}").expect("valid");
    assert_eq!(report.kernels[0].preemption, Preemption::NotPreemptible(NotPreemptible::AddressSize(32)));
}

#[test]
fn a_branch_to_nowhere_is_the_callers_fault() {
    let error = run(&source(".entry k()\n{\nbra $nowhere;\nret;\n}")).expect_err("a broken kernel");
    assert!(matches!(error, PassError::InvalidInput(_)), "{error}");
    assert!(error.to_string().contains("$nowhere"), "{error}");
}

#[test]
fn shared_memory_that_cannot_be_moved_stays_and_says_why() {
    type Expectation = fn(&SharedError) -> bool;
    let cases: [(&str, Expectation); 4] = [
        (".extern .shared .b8 x[16];\n.entry k()\n{\nst.shared.u32 [x], 1;\nret;\n}", |e| {
            matches!(e, SharedError::External(_))
        }),
        (
            ".shared .b32 x;\n.entry k()\n{\n.reg .b64 %rd<2>;\nmov.b64 %rd1, {x, x};\nret;\n}",
            |e| matches!(e, SharedError::Operand { line, .. } if *line > 0),
        ),
        (".shared .b32 x;\n.global .u64 p = x;\n.entry k()\n{\nst.shared.u32 [x], 1;\nret;\n}", |e| {
            matches!(e, SharedError::Initializer(_))
        }),
        (
            ".extern .shared .b32 x[];\n.entry k()\n{\n.reg .b64 %rd<2>;\n.shared .b32 y;\nst.shared.u32 [y], \
             1;\nmov.b64 %rd1, {x, x};\nret;\n}",
            |e| matches!(e, SharedError::Operand { .. } | SharedError::InFrontOf { .. }),
        ),
    ];
    for (body, expected) in cases {
        let (report, module) = transform_names(&source(body), &["shared_to_dynamic"]).expect(body);
        let kept = &report.kernels[0].kept_shared;
        assert!(!kept.is_empty() && kept.iter().all(expected), "{body}: {kept:?}");
        assert_eq!(report.kernels[0].shared_bytes, 0, "{body}");
        assert!(kept.iter().all(|reason| reason.to_string().contains(['x', 'y', 'p'])), "{kept:?}");
        let text = print(&module);
        assert_eq!(text.matches(".shared .b").count(), body.matches(".shared .b").count(), "{text}");
    }
}

fn transform_names(source: &str, names: &[&str]) -> Result<(TransformReport, Module), PassError> {
    let mut module = parse(source).expect("the test's PTX reads well");
    let report = transform_with(&mut module, names, &PassOptions::default(), &mut |_, _| {})?;
    Ok((report, module))
}

#[test]
fn passes_are_known_by_name_and_run_in_their_own_order() {
    let error = transform_names(&source(".entry k()\n{\nret;\n}"), &["inject_preempt_flag", "inline"])
        .expect_err("no such pass");
    assert!(matches!(&error, PassError::UnknownPass { name, .. } if name == "inline"), "{error}");
    for pass in PASSES {
        assert!(error.to_string().contains(pass.name) && !pass.doc.is_empty(), "{error}");
    }
    let mut module =
        parse(&source(".entry k()\n{\n.shared .b32 word;\nst.shared.b32 [word], 1;\nret;\n}")).expect("valid");
    let mut seen = Vec::new();
    let backwards = ["outline_kernel_body", "shared_to_dynamic", "inject_preempt_flag"];
    transform_with(&mut module, &backwards, &PassOptions::default(), &mut |pass, _| seen.push(pass.to_owned()))
        .expect("a plain kernel");
    assert_eq!(seen, ["inject_preempt_flag", "shared_to_dynamic", "outline_kernel_body"]);
}

#[test]
fn a_kernel_becomes_virtual_once() {
    let (_, mut module) =
        transform_names(&source(".entry k()\n{\nret;\n}"), &["virtualize_block_index"]).expect("a plain kernel");
    let again = transform_with(&mut module, &["virtualize_block_index"], &PassOptions::default(), &mut |_, _| {});
    assert!(matches!(again, Err(PassError::AlreadyVirtual { kernel }) if kernel == "k"));
}

#[test]
fn virtual_parameters_lie_as_the_kernel_graph_says() {
    let text = source(".entry k(.param .u16 a)\n{\n.reg .b32 %r<2>;\nmov.u32 %r1, %tid.x;\nret;\n}");
    for (block, bytes) in [(None, virtual_params::BYTES), (Some([64, 1, 1]), virtual_params::BYTES_WITHOUT_BLOCK)] {
        let mut module = parse(&text).expect("valid");
        let blocks = block.map(|block| ("k".into(), block)).into_iter().collect();
        let options = PassOptions { blocks, ..PassOptions::default() };
        let report =
            transform_with(&mut module, &["virtualize_block_index"], &options, &mut |_, _| {}).expect("a plain kernel");
        let Virtualization::Virtual(launch) = report.kernels[0].virtualization.clone() else { panic!("{report:?}") };
        assert_eq!((launch.offset, launch.block, report.kernels[0].params_bytes), (4, block, 4 + bytes));
        let names: Vec<String> =
            module.kernels().next().expect("the kernel").params[1..].iter().map(|p| p.name.to_string()).collect();
        let at = |offset: u32| names[(offset / 4) as usize].as_str();
        assert_eq!(
            (at(virtual_params::BLOCK_BASE), at(virtual_params::GRID)),
            ("k_atoll_block_base", "k_atoll_grid_x")
        );
        assert!(block.is_some() || at(virtual_params::BLOCK) == "k_atoll_block_x");
    }
}
