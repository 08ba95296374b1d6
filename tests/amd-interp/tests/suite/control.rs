//! Tests of control flow, LDS, barriers, lanes, scratch, calls and arguments, with
//! `kernels/control.ll`.

use atoll_amd_interp::{FaultKind, Launch, Memory, Options, RunError, run};

use crate::tools::{Arguments, cpus, launch, launch_with, line, program, read_words, words};

/// Runs a test on the kernels of each architecture. `test` gets the number of lanes of a wave.
fn each(test: impl Fn(&atoll_amd_interp::Program, u32)) {
    for cpu in cpus() {
        if let Some(program) = program("control.ll", cpu) {
            test(&program, if cpu.starts_with("gfx1") { 32 } else { 64 });
        }
    }
}

fn fault(result: Result<atoll_amd_interp::Stats, RunError>) -> FaultKind {
    match result {
        Err(RunError::Fault(fault)) => fault.kind,
        other => panic!("{other:?}"),
    }
}

/// Pseudorandom words.
fn some(count: u32) -> Vec<u32> {
    (0..count).map(|i| i.wrapping_mul(0x9e37_79b9) ^ i << 7).collect()
}

#[test]
fn a_guarded_vector_addition() {
    each(|program, _| {
        let mut memory = Memory::new();
        let n = 250u32;
        let floats = |f: fn(f32) -> f32| words(&(0..n).map(|i| f(i as f32).to_bits()).collect::<Vec<_>>());
        let a = memory.add("a", floats(|i| i * 0.5));
        let b = memory.add("b", floats(|i| 1.0 - i));
        let c = memory.add("c", vec![0; 4 * n as usize]);
        let arguments = Arguments::default().pointer(a).pointer(b).pointer(c).word(n);
        let stats = launch(program, "vector_add", &line(3, 96, arguments), &mut memory).unwrap();
        assert_eq!(stats.workgroups, 3);
        let expected: Vec<u32> = (0..n).map(|i| (i as f32 * 0.5 + (1.0 - i as f32)).to_bits()).collect();
        assert_eq!(read_words(&memory, c), expected);
    });
}

#[test]
fn loops_of_different_length() {
    each(|program, _| {
        let mut memory = Memory::new();
        let out = memory.add("out", vec![0; 4 * 100]);
        launch(program, "collatz", &line(1, 100, Arguments::default().pointer(out)), &mut memory).unwrap();
        let steps = |mut v: u32| {
            let mut steps = 0;
            while v != 1 {
                v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
                steps += 1;
            }
            steps
        };
        assert_eq!(read_words(&memory, out), (1..=100).map(steps).collect::<Vec<u32>>());
    });
}

#[test]
fn nested_branches_and_an_early_exit() {
    each(|program, _| {
        let mut memory = Memory::new();
        let out = memory.add("out", words(&[7; 64]));
        launch(program, "branches", &line(1, 64, Arguments::default().pointer(out).word(50)), &mut memory).unwrap();
        let table = [17, 5, -3i32 as u32, 1000];
        let expected = (0..64u32).map(|t| match t % 5 {
            _ if t >= 50 => 7,
            0 if t > 20 => t * t,
            0 => 100,
            1 => t.wrapping_neg(),
            3 => 7,
            _ => table[t as usize & 3],
        });
        assert_eq!(read_words(&memory, out), expected.collect::<Vec<u32>>());
    });
}

#[test]
fn a_reduction_through_lds_with_barriers() {
    each(|program, _| {
        let mut memory = Memory::new();
        let data = some(768);
        let (input, out) = (memory.add("in", words(&data)), memory.add("out", vec![0; 12]));
        let arguments = Arguments::default().pointer(input).pointer(out);
        launch(program, "reduce", &line(3, 256, arguments), &mut memory).unwrap();
        let sums: Vec<u32> = data.chunks(256).map(|c| c.iter().fold(0u32, |s, &v| s.wrapping_add(v))).collect();
        assert_eq!(read_words(&memory, out), sums);
    });
}

#[test]
fn dynamic_lds_by_generic_pointers() {
    each(|program, _| {
        let mut memory = Memory::new();
        let mut data = some(200);
        let address = memory.add("data", words(&data));
        let mut shape = line(1, 200, Arguments::default().pointer(address).word(200));
        shape.dynamic_lds = 800;
        launch(program, "reverse", &shape, &mut memory).unwrap();
        data.reverse();
        assert_eq!(read_words(&memory, address), data);
        shape.dynamic_lds = 796;
        assert!(matches!(
            fault(launch(program, "reverse", &shape, &mut memory)),
            FaultKind::OutsideLds { offset: 796, size: 796, .. }
        ));
    });
}

#[test]
fn ids_in_three_dimensions() {
    each(|program, _| {
        let mut memory = Memory::new();
        let total = 2 * 3 * 5 * 7 * 5 * 4;
        let out = memory.add("out", vec![0; 4 * total]);
        let kernarg = Arguments::default().pointer(out).0;
        let shape = Launch { grid: [2, 3, 5], block: [7, 5, 4], dynamic_lds: 0, kernarg };
        launch(program, "ids", &shape, &mut memory).unwrap();
        assert_eq!(read_words(&memory, out), (0..total as u32).collect::<Vec<_>>());
    });
}

#[test]
fn butterflies_stay_in_halves() {
    each(|program, _| {
        let mut memory = Memory::new();
        let data = some(64);
        let address = memory.add("data", words(&data));
        launch(program, "butterfly", &line(1, 64, Arguments::default().pointer(address)), &mut memory).unwrap();
        let sum = |c: &[u32]| c.iter().fold(0u32, |s, &v| s.wrapping_add(v));
        let expected: Vec<u32> = data.chunks(32).flat_map(|c| vec![sum(c); 32]).collect();
        assert_eq!(read_words(&memory, address), expected);
    });
}

#[test]
fn votes_and_permutations_of_lanes() {
    each(|program, wave| {
        let mut memory = Memory::new();
        let data = some(wave);
        let (input, out) = (memory.add("in", words(&data)), memory.add("out", vec![0; 32 * wave as usize]));
        let arguments = Arguments::default().pointer(input).pointer(out);
        launch(program, "lanes", &line(1, wave, arguments), &mut memory).unwrap();
        let mask = data.iter().enumerate().fold(0u64, |m, (i, &x)| m | u64::from(x & 1) << i);
        let got = read_words(&memory, out);
        for lane in 0..wave as usize {
            let at = |l: usize| data[l];
            let shifted = if lane % 16 == 0 { lane as u32 } else { at(lane - 1) };
            let expected = [
                mask as u32,
                (mask >> 32) as u32,
                at(0),
                at(5),
                at(lane ^ 1),
                shifted,
                // Swizzle 2079: the lane's number XOR 2, in groups of 32.
                at(lane ^ 2),
                at(lane & !7 | (7 - lane % 8)),
            ];
            assert_eq!(got[8 * lane..8 * lane + 8], expected, "lane {lane}");
        }
    });
}

#[test]
fn arrays_in_scratch_and_a_call() {
    each(|program, _| {
        let mut memory = Memory::new();
        let data = some(96);
        let (input, out) = (memory.add("in", words(&data)), memory.add("out", vec![0; 4 * 96]));
        let arguments = Arguments::default().pointer(input).pointer(out);
        launch(program, "scratch", &line(1, 96, arguments), &mut memory).unwrap();
        let expected: Vec<u32> = data.iter().zip(0..).map(|(x, t)| (x % 33 * t).wrapping_sub(5)).collect();
        assert_eq!(read_words(&memory, out), expected);
    });
}

#[test]
fn calls_by_address() {
    each(|program, _| {
        for which in 0..2 {
            let mut memory = Memory::new();
            let out = memory.add("out", vec![0; 4 * 40]);
            let arguments = Arguments::default().pointer(out).word(which);
            let options = Options { stack_bytes: 1024, ..Default::default() };
            let shape = line(1, 40, arguments);
            launch_with(&[program], "indirect", &shape, &mut memory, &options).unwrap();
            let f = |t: u32| if which == 0 { 2 * t } else { t * t };
            assert_eq!(read_words(&memory, out), (0..40).map(f).collect::<Vec<_>>());
        }
    });
}

#[test]
fn variables_of_a_module_keep_their_value() {
    each(|program, _| {
        let mut memory = Memory::new();
        for launches in 1..3 {
            launch(program, "count", &line(2, 33, Arguments::default()), &mut memory).unwrap();
            let address = program.symbol("counter").unwrap();
            let mut value = [0; 4];
            memory.read(address, &mut value).unwrap();
            assert_eq!(u32::from_le_bytes(value), 7 + 66 * launches);
        }
    });
}

#[test]
fn arguments_of_all_sizes() {
    each(|program, _| {
        let mut memory = Memory::new();
        let out = memory.add("out", vec![0; 64]);
        let vector: Vec<u8> = words(&[1, 2, 3, 4]);
        let arguments = Arguments::default()
            .pointer(out)
            .push(&[0x85])
            .push(&0xfedcu16.to_le_bytes())
            .word(-9i32 as u32)
            .push(&0x0123_4567_89ab_cdefu64.to_le_bytes())
            .push(&vector)
            .push(&0x3e00u16.to_le_bytes())
            .push(&(-2.5f64).to_le_bytes());
        launch(program, "arguments", &line(1, 1, arguments.clone()), &mut memory).unwrap();
        let got = read_words(&memory, out);
        let wide = |at: usize| u64::from(got[at]) | u64::from(got[at + 1]) << 32;
        assert_eq!([wide(0) as i64, wide(2) as i64, wide(4) as i64], [-123, 0xfedc, -9]);
        assert_eq!(wide(6), 0x0123_4567_89ab_cdef);
        assert_eq!(got[8..12], [1, 2, 3, 4]);
        assert_eq!([f64::from_bits(wide(12)), f64::from_bits(wide(14))], [1.5, -2.5]);
        let short = Arguments(arguments.0[..20].to_vec());
        assert!(matches!(
            run(&[program], "arguments", &line(1, 1, short), &mut memory, &Options::default()),
            Err(RunError::Launch(_))
        ));
    });
}

#[test]
fn faults_name_what_happened() {
    each(|program, _| {
        let mut memory = Memory::new();
        let out = memory.add("out", vec![0; 40]);
        let arguments = Arguments::default().pointer(out).word(5);
        let result = launch(program, "outside", &line(1, 8, arguments), &mut memory);
        let Err(RunError::Fault(fault_)) = result else { panic!("{result:?}") };
        assert_eq!(fault_.kind, FaultKind::OutsideBuffers { access: "write", address: out + 40, bytes: 4 });
        assert_eq!((fault_.lane, fault_.wave), (Some(5), 0));
        assert!(fault_.text.starts_with("global_store_"), "{}", fault_.text);

        let options = Options { limit: 5000, ..Default::default() };
        let shape = line(1, 8, Arguments::default().pointer(out));
        let result = launch_with(&[program], "endless", &shape, &mut memory, &options);
        assert_eq!(fault(result), FaultKind::LimitReached(5000));

        let arguments = |n| Arguments::default().pointer(out).word(n);
        launch(program, "trap", &line(1, 8, arguments(3)), &mut memory).unwrap();
        assert_eq!(fault(launch(program, "trap", &line(1, 8, arguments(4)), &mut memory)), FaultKind::Trap(2));

        let missing = launch(program, "nothing", &line(1, 8, Arguments::default()), &mut memory).unwrap_err();
        assert!(missing.to_string().contains("no kernel `nothing`; it has: arguments, branches"), "{missing}");
    });
}
