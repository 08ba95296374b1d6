//! The pipeline as a caller sees it: reports, hooks and refusals.

use atoll_kgraph::preempt_params;
use atoll_passes::{NotCut, PassError, Preemption, SharedError, TransformOptions, TransformReport, transform};
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
    let start = report.kernels[0].preempt_offset().expect("it was cut");
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
    let both = TransformOptions::default();
    transform(&mut module, &both, &mut |pass, module| seen.push((pass.to_owned(), print(module)))).expect("a plain kernel");
    assert_eq!(seen.iter().map(|(pass, _)| pass.as_str()).collect::<Vec<_>>(), ["inject_preempt_flag", "shared_to_dynamic"]);
    assert!(seen[0].1.contains(".shared .b32 word") && !seen[1].1.contains(".shared .b32 word"));

    let none = TransformOptions { inject_preempt_flag: false, shared_to_dynamic: false };
    let before = print(&module);
    let report = transform(&mut module, &none, &mut |pass, _| panic!("{pass} was not asked for")).expect("nothing to do");
    assert_eq!(report.kernels[0].preemption, Preemption::NotAsked);
    assert_eq!(print(&module), before);
}

#[test]
fn what_comes_out_reads_back_as_the_same_text() {
    let (_, module) = run(&source(".entry k()\n{\n.reg .pred %p<2>;\n.shared .b32 word;\nst.shared.u32 [word], 1;\nbar.sync 0;\nret;\n}"))
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
    assert_eq!(report.kernels[0].preemption, Preemption::NotCut(NotCut::TooManyParameters { bytes: 4108, limit: 4096 }));
    let (report, _) = run(&source(long).replace("7.0", "8.1")).expect("valid");
    assert_eq!(report.kernels[0].preempt_offset(), Some(4080));
}

#[test]
fn narrow_addresses_are_not_cut() {
    let (report, _) = run(".version 7.0\n.target sm_75\n.address_size 32\n.entry k()\n{\nret;\n}").expect("valid");
    assert_eq!(report.kernels[0].preemption, Preemption::NotCut(NotCut::AddressSize(32)));
}

#[test]
fn a_branch_to_nowhere_is_the_callers_fault() {
    let error = run(&source(".entry k()\n{\nbra $nowhere;\nret;\n}")).expect_err("a broken kernel");
    assert!(matches!(error, PassError::InvalidInput(_)), "{error}");
    assert!(error.to_string().contains("$nowhere"), "{error}");
}

#[test]
fn shared_memory_that_cannot_be_moved_is_refused_with_its_name() {
    type Expectation = fn(&SharedError) -> bool;
    let cases: [(&str, Expectation); 4] = [
        (".extern .shared .b8 x[16];\n.entry k()\n{\nst.shared.u32 [x], 1;\nret;\n}", |e| matches!(e, SharedError::External(_))),
        (
            ".shared .b32 x;\n.entry k()\n{\n.reg .b64 %rd<2>;\nmov.b64 %rd1, {x, x};\nret;\n}",
            |e| matches!(e, SharedError::Operand { line, .. } if *line > 0),
        ),
        (".entry k()\n{\n{\n.shared .b32 x;\nst.shared.u32 [x], 1;\n}\n{\n.shared .b32 x;\nst.shared.u32 [x], 1;\n}\nret;\n}", |e| {
            matches!(e, SharedError::Twice(_))
        }),
        (".shared .b32 x;\n.global .u64 p = x;\n.entry k()\n{\nst.shared.u32 [x], 1;\nret;\n}", |e| {
            matches!(e, SharedError::Initializer(_))
        }),
    ];
    for (body, expected) in cases {
        let error = run(&source(body)).expect_err(body);
        let PassError::Shared(shared) = &error else { panic!("{error}") };
        assert!(expected(shared) && error.to_string().contains(['x', 'p']), "{error}");
    }
}
