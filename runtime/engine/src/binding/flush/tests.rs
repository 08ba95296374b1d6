use super::*;
use atoll_core::DeviceOffset;
use atoll_device::AddressRange;
use atoll_kgraph::FenceFacts;
use std::collections::BTreeSet;

const CONSTANTS: AddressRange = AddressRange { base: DeviceOffset(1 << 46), bytes: 1 << 20 };
const RANGES: FenceRanges = FenceRanges { memory_mask: 0xffff, constants: Some(CONSTANTS) };

/// A kernel with 12 bytes of its own parameters, a fence and a check of the epoch.
fn kernel() -> KernelFacts {
    KernelFacts {
        params_bytes: 56 + preempt_params::BYTES,
        fence: Some(FenceFacts { offset: 16, dynamic_shared_bytes: 5, fault_word: false }),
        preempt_offset: Some(56),
        shared_bytes: 7,
        ..KernelFacts::default()
    }
}

fn launch<'a>(kernel: &'a KernelFacts, grid: [u32; 3], params: &'a [u8]) -> Piece<'a> {
    Piece::Launch { code: FunctionId(3), kernel, grid, params }
}

#[test]
fn where_constants_are_in_the_memory_of_the_tenant_the_fence_encloses_the_session() {
    let ranges = FenceRanges { memory_mask: 0xffff, constants: None };
    let kernel = kernel();
    let binding = parts(ranges, 4096, &[launch(&kernel, [1, 1, 1], &[9; 12])]).unwrap();
    let own = Site { space: Space::State, offset: 0 };
    let bases: BTreeSet<usize> = binding.relocations.iter().filter(|it| it.site == own).map(|it| it.at).collect();
    assert_eq!(bases, BTreeSet::from([16, 32]));
    assert_eq!([24, 40].map(|at| binding.params[at..at + 8] == 4095_u64.to_le_bytes()), [true; 2], "the masks");
    let Work::Launch(template) = &binding.work[0] else { panic!("a launch") };
    assert_eq!([2, 3, 4, 5].map(|slot| template.address_slots.contains(slot)), [true, false, true, false]);
    let refused =
        |bytes, kernel: &KernelFacts| parts(ranges, bytes, &[launch(kernel, [1, 1, 1], &[9; 12])]).unwrap_err();
    assert!(refused(4097, &kernel).ends_with("a fence needs a power of two"));
    let plain = KernelFacts { name: "plain".into(), params_bytes: 12, ..KernelFacts::default() };
    assert!(refused(4096, &plain).ends_with("kernel 'plain' has no fence"));
}

#[test]
fn calls_become_steps_in_their_order() {
    let (kernel, params) = (kernel(), [9; 12]);
    let plain = KernelFacts { params_bytes: 12, ..KernelFacts::default() };
    let pieces = [
        Piece::CopyIn { to: 0, bytes: 100 },
        launch(&kernel, [4, 2, 1], &params),
        launch(&plain, [1, 1, 1], &params),
        Piece::CopyOut { from: 4000, bytes: 96 },
    ];
    let binding = parts(RANGES, 4096, &pieces).unwrap();
    assert_eq!(binding.steps, [Step::Host, Step::Preemptible, Step::NotPreemptible, Step::Host]);
    assert_eq!((binding.inputs[0], binding.outputs[0].offset), (Place { offset: 0, bytes: 100 }, 256));
    assert_eq!((binding.layout.state_bytes, binding.layout.bytes), (4096, FLUSH_BYTES_MIN));
    assert_eq!(binding.code, [FunctionId(3)], "each function once");
    let progress = binding.layout.launches[0].unwrap().progress;
    assert!(progress.bytes == 8 && progress.offset >= binding.layout.epoch_word + BUFFER_ALIGN);
    assert_eq!(binding.relocations.len(), 5, "of the fence and of the epoch check");
    assert_eq!((&binding.params[..12], binding.params[24]), (&params[..], 0xff), "the mask follows the base");
}

#[test]
fn parameters_that_the_compiler_appended_hold_the_ranges_and_words_of_the_tenant() {
    let (kernel, plain) = (kernel(), KernelFacts { params_bytes: 12, ..KernelFacts::default() });
    // The second launch begins at the next multiple of eight bytes.
    let pieces = [launch(&plain, [1, 1, 1], &[1; 12]), launch(&kernel, [3, 1, 1], &[9; 16])];
    let binding = parts(RANGES, 4096, &pieces).unwrap();
    let (start, layout) = (16, binding.layout.launches[1].unwrap());
    let site = |space, offset| Site { space, offset };
    let found: Vec<(usize, Site)> = binding.relocations.iter().map(|it| (it.at, it.site)).collect();
    let at = |parameter: u32| start + parameter as usize;
    let expected = [
        (at(16 + fence_params::BASE), site(Space::Domain, 0)),
        (at(16 + fence_params::CONSTANTS_BASE), site(Space::Device, 1 << 46)),
        (at(56 + preempt_params::EPOCH_WORD), site(Space::Invocation, binding.layout.epoch_word)),
        (at(56 + preempt_params::EVICTED_WORD), site(Space::Invocation, layout.evicted_word)),
        (at(56 + preempt_params::PROGRESS), site(Space::Invocation, layout.progress.offset)),
    ];
    assert_eq!(found, expected);
    let bytes = |parameter: u32, count: usize| &binding.params[at(parameter)..at(parameter) + count];
    assert_eq!(
        (&binding.params[..12], &binding.params[12..16], bytes(0, 16)),
        (&[1; 12][..], &[0; 4][..], &[9; 16][..])
    );
    assert_eq!(bytes(16 + fence_params::MASK, 8), 0xffff_u64.to_le_bytes());
    assert_eq!(bytes(16 + fence_params::CONSTANTS_MASK, 8), CONSTANTS.mask().to_le_bytes());
    assert_eq!(bytes(16 + fence_params::DYNAMIC_SHARED, 4), 5_u32.to_le_bytes());
    let Work::Launch(template) = &binding.work[1] else { panic!("a launch") };
    assert_eq!((template.params.clone(), template.may_run_again, template.stays), (start..100, false, false));
    assert_eq!(template.issued_epoch, Some(56 + preempt_params::ISSUED_EPOCH as usize));
    let Work::Launch(first) = &binding.work[0] else { panic!("a launch") };
    assert_eq!((first.keeps_progress, first.stays, first.issued_epoch), (false, true, None));
}

#[test]
fn the_last_byte_block_and_parameter_are_accepted_and_the_next_ones_are_not() {
    let most = FLUSH_BLOCKS_MAX as u32;
    let (fenced, bare) = (kernel(), KernelFacts { params_bytes: 12, ..KernelFacts::default() });
    let checked =
        KernelFacts { params_bytes: 8 + preempt_params::BYTES, preempt_offset: Some(8), ..KernelFacts::default() };
    let params = [0; 17];
    let outside = "lie outside the session's 4096 bytes";
    let copy = |from, to, bytes| Piece::Copy { from, to, bytes };
    for (piece, expected) in [
        (Piece::CopyIn { to: 4000, bytes: 96 }, ""),
        (Piece::CopyIn { to: 4001, bytes: 96 }, outside),
        (Piece::CopyOut { from: 4000, bytes: 96 }, ""),
        (Piece::CopyOut { from: 4000, bytes: 97 }, outside),
        (copy(4088, 0, 8), ""),
        (copy(4089, 0, 8), outside),
        (copy(0, 4088, 8), ""),
        (copy(0, 4089, 8), outside),
        (Piece::Fill { to: 4096, pattern: [0; 8], bytes: 0 }, ""),
        (Piece::Fill { to: 4097, pattern: [0; 8], bytes: 0 }, outside),
        (launch(&bare, [most, 1, 1], &[]), ""),
        (launch(&bare, [1, most, 1], &[]), ""),
        (launch(&bare, [most + 1, 1, 1], &[]), "a grid has 1 to 67108864 blocks"),
        (launch(&bare, [1, 1, 0], &[]), "a grid has 1 to 67108864 blocks"),
        (launch(&fenced, [1, 1, 1], &params[..16]), ""),
        (launch(&fenced, [1, 1, 1], &params), "17 bytes of parameters; the kernel takes at most 16"),
        (launch(&checked, [1, 1, 1], &params[..8]), ""),
        (launch(&checked, [1, 1, 1], &params[..9]), "9 bytes of parameters; the kernel takes at most 8"),
        (launch(&bare, [1, 1, 1], &params[..12]), ""),
        (launch(&bare, [1, 1, 1], &params[..13]), "13 bytes of parameters; the kernel takes at most 12"),
    ] {
        let found = parts(RANGES, 4096, &[piece]).err().unwrap_or_default();
        let is_expected = if expected.is_empty() { found.is_empty() } else { found.contains(expected) };
        assert!(is_expected, "{piece:?}: expected `{expected}`, found `{found}`");
    }
    let large = |bytes| parts(RANGES, 1 << 62, &[Piece::CopyOut { from: 0, bytes }]).err();
    assert_eq!(large(1 << 62), Some("its copies and launches need too much memory".to_owned()));
    assert_eq!(large(u64::MAX), large(1 << 62));
    // The memory of a flush is a power of two.
    let bytes = |bytes| parts(RANGES, 1 << 30, &[Piece::CopyIn { to: 0, bytes }]).unwrap().layout.bytes;
    assert_eq!([bytes(0), bytes(FLUSH_BYTES_MIN / 2), bytes(FLUSH_BYTES_MIN)].map(|b| b / FLUSH_BYTES_MIN), [1, 1, 2]);
}

#[test]
fn wrong_calls_are_refused() {
    let kernel = kernel();
    let refused = |piece| parts(RANGES, 4096, &[piece]).unwrap_err();
    for piece in [
        Piece::CopyIn { to: 4000, bytes: 97 },
        Piece::CopyOut { from: u64::MAX, bytes: 8 },
        Piece::Copy { from: 0, to: 4096, bytes: 1 },
        Piece::Fill { to: 5000, pattern: [0; 8], bytes: 0 },
    ] {
        assert!(refused(piece).contains("lie outside the session's 4096 bytes"), "{piece:?}");
    }
    for grid in [[0, 1, 1], [u32::MAX, u32::MAX, u32::MAX], [1 << 26, 2, 1]] {
        assert!(refused(launch(&kernel, grid, &[])).contains("a grid has 1 to"), "{grid:?}");
    }
    assert!(refused(launch(&kernel, [1, 1, 1], &[0; 17])).contains("17 bytes of parameters; the kernel"));
}
