//! Snapshots of generated modules: for each `tests/dkp/NAME.ptx` and each of three devices,
//! `NAME.DEVICE.snap` holds the modules. `INSTA_UPDATE=always cargo test -p atoll-proxy-kernels`
//! updates the snapshots.

use atoll_kgraph::dkp::CandidateFacts;
use atoll_passes::{CANDIDATE_PASSES, PassOptions, transform_with};
use atoll_proxy_kernels::{AmdModel, Candidate, DeviceModel, DkpModule, NotPadded, candidate_facts, dkp_modules};

/// Generates the modules of all kernels in a text, in blocks of 64 threads. A comment `//
/// registers: KERNEL N` gives the registers of a kernel.
fn generate(text: &str, device: &'static DeviceModel) -> String {
    let mut module = atoll_ptx::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let report = transform_with(&mut module, CANDIDATE_PASSES, &PassOptions::default(), &mut |_, _| {}).unwrap();
    let registers = |kernel: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("// registers: {kernel} ")));
        line.map_or(32, |n| n.parse().unwrap())
    };
    let mut out = String::new();
    let mut refuse = |kernel: &str, reason: &NotPadded| out += &format!("// {kernel}: not padded: {reason}\n");
    let mut prepared: Vec<(&str, CandidateFacts)> = Vec::new();
    for kernel in &report.kernels {
        match candidate_facts(kernel) {
            Ok(facts) => prepared.push((&kernel.name, facts)),
            Err(reason) => refuse(&kernel.name, &reason),
        }
    }
    let candidates: Vec<Candidate<'_>> = (prepared.iter())
        .map(|(kernel, facts)| Candidate {
            module: &module,
            kernel,
            facts,
            block: [64, 1, 1],
            registers: registers(kernel),
            dynamic_shared_bytes: 0,
        })
        .collect();
    let made = dkp_modules(&candidates, device, 512);
    for (index, reason) in &made.refused {
        refuse(candidates[*index].kernel, reason);
    }
    for dkp in &made.modules {
        let names: Vec<&str> = dkp.facts.candidates.iter().map(|c| c.kernel.as_str()).collect();
        let shared: Vec<String> = dkp.facts.candidates.iter().map(|c| c.shared_bytes.to_string()).collect();
        let threads: Vec<String> = dkp.facts.threads.iter().map(u32::to_string).collect();
        out += &format!(
            "// {}: {}; blocks of {} threads; {} bytes of shared memory\n",
            dkp.facts.entry,
            names.join(", "),
            threads.join(" or "),
            shared.join(", ")
        );
        let printed = atoll_ptx::print(&dkp.module);
        let parsed = atoll_ptx::parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        atoll_ptx::verify(&parsed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        out += printed.trim_start();
        // Only modules for AMD GPUs have a proxy.
        if let Some(proxy) = AmdModel::find("gfx906").and_then(|model| model.proxy(dkp)) {
            out += &format!("\n// {:?}, {}\n{}", proxy.level, proxy.constraints, proxy.assembly);
        }
    }
    out
}

#[test]
fn modules_match_their_snapshots() {
    insta::with_settings!({ snapshot_path => "dkp", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::glob!("dkp/*.ptx", |input| {
            let text = std::fs::read_to_string(input).unwrap();
            let name = input.file_stem().unwrap().to_str().unwrap();
            for device in ["v100", "host", "mi50"] {
                let found = generate(&text, DeviceModel::find(device).unwrap());
                let snapshot = format!("{name}.{device}");
                insta::with_settings!({ snapshot_suffix => "" }, { insta::assert_snapshot!(snapshot, found) });
            }
        });
    });
}

#[test]
fn kernels_without_the_passes_are_rejected() {
    let module =
        atoll_ptx::parse(".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() { ret; }\n").unwrap();
    let mut copy = module.clone();
    let report = transform_with(&mut copy, &[], &PassOptions::default(), &mut |_, _| {}).unwrap();
    assert!(matches!(candidate_facts(&report.kernels[0]), Err(NotPadded::NotVirtual(_))));
}

#[test]
fn a_module_contains_the_candidates_of_lower_classes_whose_blocks_fit() {
    let mut module = atoll_ptx::parse(include_str!("dkp/classes.ptx")).unwrap();
    let report = transform_with(&mut module, CANDIDATE_PASSES, &PassOptions::default(), &mut |_, _| {}).unwrap();
    let facts = |name: &str| candidate_facts(report.kernels.iter().find(|k| k.name == name).unwrap()).unwrap();
    let (small, large) = (facts("small"), facts("large"));
    // The candidates of each module and their blocks per compute unit. `large` has 64 threads.
    let modules = |device: &str, threads_of_small: u32| {
        let candidate = |kernel, facts, threads, registers| Candidate {
            module: &module,
            kernel,
            facts,
            block: [threads, 1, 1],
            registers,
            dynamic_shared_bytes: 0,
        };
        let candidates = [candidate("small", &small, threads_of_small, 24), candidate("large", &large, 64, 120)];
        let of = |dkp: &DkpModule| dkp.facts.candidates.iter().map(|c| (c.index, c.unit_blocks)).collect::<Vec<_>>();
        let made = dkp_modules(&candidates, DeviceModel::find(device).unwrap(), 512);
        made.modules.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(modules("v100", 256), [vec![(0, 8)], vec![(1, 8), (0, 2)]]);
    assert_eq!(modules("v100", 1024), [vec![(0, 2)], vec![(1, 8)]], "1024 threads do not fit with 128 registers");
    assert_eq!(modules("mi50", 256), [vec![(0, 10)], vec![(1, 8), (0, 2)]]);
    assert_eq!(modules("host", 1024), [vec![(0, u32::MAX), (1, u32::MAX)]]);
}

#[test]
fn a_parameter_is_as_large_as_four_of_the_largest_candidates_need() {
    let mut module = atoll_ptx::parse(include_str!("dkp/classes.ptx")).unwrap();
    let report = transform_with(&mut module, CANDIDATE_PASSES, &PassOptions::default(), &mut |_, _| {}).unwrap();
    let facts = |name: &str| candidate_facts(report.kernels.iter().find(|k| k.name == name).unwrap()).unwrap();
    let small = facts("small");
    // The size of the parameter, or why the larger of two candidates is in no module.
    let made = |device: &str, params_bytes: u32| {
        let large = CandidateFacts { params_bytes, ..facts("large") };
        let candidate = |kernel, facts| Candidate {
            module: &module,
            kernel,
            facts,
            block: [64, 1, 1],
            registers: 32,
            dynamic_shared_bytes: 0,
        };
        let candidates = [candidate("small", &small), candidate("large", &large)];
        let made = dkp_modules(&candidates, DeviceModel::find(device).unwrap(), 4096);
        match made.refused.into_iter().next() {
            Some((index, reason)) => {
                assert_eq!(index, 1);
                Err(reason)
            }
            None => Ok(made.modules[0].facts.params_bytes),
        }
    };
    for device in ["v100", "host", "mi50"] {
        assert_eq!(made(device, 112), Ok(64 + 4 * 112), "{device}");
        assert_eq!(made(device, 113), Ok(64 + 4 * 128), "{device}");
        assert_eq!(made(device, 1000), Ok(4096), "{device}");
        assert_eq!(made(device, 2016), Ok(4096), "{device}: two fit");
        assert_eq!(made(device, 2017), Err(NotPadded::Arguments { bytes: 2017, room: 4032 }), "{device}");
    }
}
