//! Recordings made by hand.

use super::*;
use crate::code::Code;
use crate::facts::{KERNEL_ATTRIBUTES, KernelFacts};
use crate::limits::COPY_BYTES_MAX;
use crate::ranges::Span;
use crate::record::Record;
use std::borrow::Cow;

const MEMORY: Span = Span { at: 1 << 40, bytes: 1 << 30 };

/// A recording that is being written. Its session has the kernels 1, `scale(pointer, u32)`, and 2,
/// `gather(structure of two pointers and a number)`.
struct Tape {
    bytes: Vec<u8>,
    base: u64,
}

impl Tape {
    /// A session whose allocations begin at this offset in its memory.
    fn new(offset: u64) -> Tape {
        let mut tape = Tape { bytes: recording_head(MEMORY), base: MEMORY.at + offset };
        tape.call(Record::LoadModule { module: 9, digest: [7; 32], image: b"PTX" }, &[]);
        for (kernel, name, params) in [(1, "scale", vec![(0, 8), (8, 4)]), (2, "gather", vec![(0, 24)])] {
            let facts = KernelFacts { params, attributes: [1024; KERNEL_ATTRIBUTES] };
            tape.call(Record::GetKernel { kernel, module: 9, name }, &facts.write());
        }
        tape
    }

    fn call(&mut self, record: Record<'_>, answer: &[u8]) -> &mut Tape {
        Item::Call(&record, Ok(answer)).write(&mut self.bytes);
        self
    }

    fn fail(&mut self, record: Record<'_>, code: Code) -> &mut Tape {
        Item::Call(&record, Err(code)).write(&mut self.bytes);
        self
    }

    fn allocate(&mut self, slot: u64, bytes: u64) -> &mut Tape {
        let at = self.at(slot);
        self.call(Record::Allocate { at, bytes }, &[])
    }

    /// The address of an allocation.
    fn at(&self, slot: u64) -> u64 {
        self.base + slot * 4096
    }

    fn upload(&mut self, to: u64, bytes: &[u8]) -> &mut Tape {
        self.call(Record::CopyIn { stream: 0, to, bytes }, &[])
    }

    fn download(&mut self, from: u64, bytes: &[u8]) -> &mut Tape {
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        Item::Part(first).write(&mut self.bytes);
        Item::Part(rest).write(&mut self.bytes);
        self.call(Record::CopyOut { stream: 0, from, bytes: bytes.len() as u64 }, &[])
    }

    fn launch(&mut self, kernel: u32, params: &[u8]) -> &mut Tape {
        let record = Record::Launch {
            stream: 3,
            kernel,
            grid: [2, 1, 1],
            block: [32, 1, 1],
            shared_bytes: 0,
            cooperative: 0,
            params,
        };
        self.call(record, &[])
    }

    fn scale(&mut self, slot: u64, count: u32) -> &mut Tape {
        let params = [self.at(slot).to_le_bytes().as_slice(), &count.to_le_bytes()].concat();
        self.launch(1, &params)
    }

    fn end(&mut self) -> Vec<u8> {
        Item::End.write(&mut self.bytes);
        self.bytes.clone()
    }
}

fn steps(file: &[u8]) -> Result<Steps<'_>, Unstorable> {
    Steps::of(Recording::read(file).expect("a recording"))
}

/// The text of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, Unstorable>) -> String {
    result.expect_err("no function").to_string()
}

/// A session that scales an input in place, with a table of weights beside it.
fn session(offset: u64, input: u8, change: impl FnOnce(&mut Tape)) -> Vec<u8> {
    let mut tape = Tape::new(offset);
    tape.allocate(0, 64).allocate(1, 256);
    let (data, weights) = (tape.at(0), tape.at(1));
    tape.upload(weights, &[5; 256]).upload(data, &[input; 64]).scale(0, 16);
    change(&mut tape);
    tape.download(data, &[input * 2; 64]);
    tape.call(Record::Free { at: data }, &[]);
    tape.end()
}

/// `gather` writes through its second pointer, `scale` through its first.
fn writes(kernel: &Kernel) -> Option<Vec<(usize, usize)>> {
    Some(vec![if kernel.name == "scale" { (0, 0) } else { (0, 8) }])
}

fn names<'a>(function: &'a Function<'_>) -> Vec<(&'a str, u64)> {
    function.buffers.iter().map(|buffer| (buffer.name.as_str(), buffer.bytes)).collect()
}

#[test]
fn data_that_differs_is_an_input_and_equal_data_a_constant() {
    // The memory of the sessions is in different places.
    let files = [session(0, 1, |_| ()), session(1 << 20, 2, |_| ()), session(512, 3, |_| ())];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    let runs = sessions.each_ref().map(Run::whole);
    let pattern = Pattern::of(&runs[..2]).expect("a pattern");
    let values = pattern.values(&runs[2]).expect("another run");
    assert_eq!(values, Values { inputs: vec![&[3; 64]], outputs: vec![&[6; 64]] });
    let function = Function::of(&pattern, &writes).expect("a function");
    // The table is a constant itself. The input is changed, so it is copied; the result is not.
    assert_eq!(names(&function), [("const0", 256), ("in0", 64), ("out0", 64)]);
    assert_eq!(function.buffers[0].contents.as_deref(), Some(&[5; 256][..]));
    let place = |buffer, offset| Place { buffer, offset };
    assert_eq!(function.operations[0], Operation::Copy { to: place(2, 0), from: place(1, 0), bytes: 64 });
    let Operation::Launch { kernel, grid, block, params, .. } = &function.operations[1] else { panic!("a launch") };
    assert_eq!((kernel.name.as_str(), *grid, *block), ("scale", [2, 1, 1], [32, 1, 1]));
    assert_eq!(params[0], Param { bytes: vec![0; 8], addresses: vec![(0, place(2, 0))] });
    assert_eq!(params[1], Param { bytes: 16u32.to_le_bytes().to_vec(), addresses: vec![] });
    assert_eq!(function.operations.len(), 2);
}

#[test]
fn memory_that_kernels_may_write_is_neither_input_nor_constant() {
    let files = [session(0, 1, |_| ()), session(0, 2, |_| ())];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    let pattern = Pattern::of(&sessions.each_ref().map(Run::whole)).expect("a pattern");
    // A kernel that only reads its memory: the input is the allocation, and is copied back.
    let reads = Function::of(&pattern, &|_| Some(Vec::new())).expect("a function");
    assert_eq!(names(&reads), [("const0", 256), ("in0", 64), ("out0", 64)]);
    let Operation::Launch { params, .. } = &reads.operations[0] else { panic!("a launch") };
    assert_eq!(params[0].addresses[0].1.buffer, 1);
    assert!(matches!(reads.operations[1], Operation::Copy { to: Place { buffer: 2, .. }, bytes: 64, .. }));
    // The same as for one that writes.
    let unknown = Function::of(&pattern, &|_| None).expect("a function");
    assert_eq!(unknown.operations, Function::of(&pattern, &writes).expect("a function").operations);
}

#[test]
fn a_kernel_that_is_not_followed_reaches_memory_of_earlier_launches() {
    let file = |input: u8| {
        let mut tape = Tape::new(0);
        tape.allocate(0, 64).allocate(1, 64).allocate(2, 64);
        let (table, data, result) = (tape.at(0), tape.at(1), tape.at(2));
        // `gather` may store the address of the table in the result.
        let first = [table, result, 0].map(u64::to_le_bytes).concat();
        tape.upload(table, &[9; 64]).upload(data, &[input; 64]).launch(2, &first);
        tape.scale(1, 16).download(result, &[input; 64]);
        tape.end()
    };
    let files = [file(1), file(2)];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    let pattern = Pattern::of(&sessions.each_ref().map(Run::whole)).expect("a pattern");
    let names_of = |is_followed: bool| {
        let function = Function::of(&pattern, &|kernel| {
            if is_followed || kernel.name == "gather" { writes(kernel) } else { None }
        });
        let function = function.expect("a function");
        names(&function).into_iter().map(|(name, _)| name.to_owned()).collect::<Vec<String>>()
    };
    assert_eq!(names_of(true), ["const0", "in0", "out0", "memory0"]);
    assert_eq!(names_of(false), ["const0", "in0", "out0", "memory0", "memory1"]);
}

#[test]
fn addresses_in_structures_are_found() {
    let file = |input: u8, to: u64| {
        let mut tape = Tape::new(0);
        tape.allocate(0, 64).allocate(1, 64);
        let (from, result) = (tape.at(0), tape.at(1));
        let end = result + to;
        let params = [from + 16, end, 77].map(u64::to_le_bytes).concat();
        tape.upload(from, &[input; 64]).launch(2, &params).download(result, &[input; 64]);
        tape.end()
    };
    // The second one is the address just behind the allocation.
    let files = [file(1, 64), file(2, 64), file(3, 60)];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    let runs = sessions.each_ref().map(Run::whole);
    let pattern = Pattern::of(&runs[..2]).expect("a pattern");
    let function = Function::of(&pattern, &writes).expect("a function");
    assert_eq!(names(&function), [("in0", 64), ("out0", 64)]);
    let Operation::Launch { params, .. } = &function.operations[0] else { panic!("a launch") };
    let bytes = [0, 0, 77].map(u64::to_le_bytes).concat();
    let addresses = vec![(0, Place { buffer: 0, offset: 16 }), (8, Place { buffer: 1, offset: 64 })];
    assert_eq!(params, &[Param { bytes, addresses }]);
    let other = refusal(Pattern::of(&runs[1..]));
    assert_eq!(
        other,
        "run 2 differs from run 1: step 2 (call 6) launches `gather` with parameter 0 at offset 60 instead of 64"
    );
}

#[test]
fn differences_are_named() {
    let other = |change: &dyn Fn(&mut Tape)| {
        let files = [session(0, 1, |_| ()), session(0, 2, change)];
        let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
        refusal(Pattern::of(&sessions.each_ref().map(Run::whole)))
    };
    let two = |tape: &mut Tape| {
        tape.scale(0, 17);
    };
    assert!(
        other(&two).starts_with("run 2 differs from run 1: step 4 (call 8) is a launch of `scale` instead of a copy")
    );
    let fill = Record::Fill { stream: 0, to: MEMORY.at, pitch: 0, width: 1, height: 1, value: 0, size: 4 };
    assert!(
        other(&|tape| {
            tape.call(fill, &[]);
        })
        .contains("is a fill instead of a copy of 64 bytes to the host")
    );
    let number = |count: u32| {
        let mut tape = Tape::new(0);
        tape.allocate(0, 64).upload(MEMORY.at, &[count as u8; 64]).scale(0, count).download(MEMORY.at, &[1; 64]);
        tape.end()
    };
    let files = [number(4), number(5)];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    let why = refusal(Pattern::of(&sessions.each_ref().map(Run::whole)));
    assert!(why.ends_with("launches `scale` with 5 instead of 4 as parameter 1"), "{why}");
    let equal = [session(0, 1, |_| ()), session(0, 1, |_| ())];
    let sessions = equal.each_ref().map(|file| steps(file).expect("steps"));
    let why = refusal(Pattern::of(&sessions.each_ref().map(Run::whole)));
    assert!(why.contains("record runs with different inputs"), "{why}");
}

#[test]
fn a_run_with_other_constants_is_not_of_the_pattern() {
    let weights = |value: u8| {
        move |tape: &mut Tape| {
            tape.upload(tape.at(1), &[value; 8]);
        }
    };
    let files = [session(0, 1, weights(1)), session(0, 2, weights(1)), session(0, 3, weights(2))];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    let runs = sessions.each_ref().map(Run::whole);
    let pattern = Pattern::of(&runs[..2]).expect("a pattern");
    let why = pattern.values(&runs[2]).expect_err("another constant");
    assert!(why.contains("call 8 copies data to the device that was equal in the compared runs"), "{why}");
}

#[test]
fn data_computed_from_results_is_refused() {
    let file = |input: u8| {
        session(0, input, |tape| {
            let at = tape.at(0);
            tape.download(at, &[input; 64]).upload(at, &[input + 1; 64]);
        })
    };
    let files = [file(1), file(2)];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    let why = refusal(Pattern::of(&sessions.each_ref().map(Run::whole)));
    assert!(why.starts_with("call 9 (cuMemcpyHtoD) copies data to the device that differs"), "{why}");
    // Data that is equal may be a constant, and may be computed from results that are equal.
    let equal = |tape: &mut Tape| {
        let (data, weights) = (tape.at(0), tape.at(1));
        tape.download(data, &[0; 64]).upload(weights, &[1; 64]);
    };
    let files = [session(0, 1, equal), session(0, 2, equal)];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    let pattern = Pattern::of(&sessions.each_ref().map(Run::whole)).expect("a pattern");
    assert_eq!(pattern.constants_after_results(), [9]);
}

#[test]
fn a_repetition_in_a_session_is_several_runs() {
    let mut tape = Tape::new(0);
    tape.allocate(0, 64).allocate(1, 256);
    let (data, weights) = (tape.at(0), tape.at(1));
    tape.upload(weights, &[5; 256]).download(weights, &[5; 256]);
    for input in 1..=4 {
        tape.upload(data, &[input; 64]).scale(0, 16).download(data, &[input * 2; 64]);
    }
    tape.call(Record::Free { at: data }, &[]);
    let file = tape.end();
    let session = steps(&file).expect("steps");
    let runs = Run::all(&session);
    assert_eq!(runs.iter().map(|run| run.steps.len()).collect::<Vec<usize>>(), [4; 4], "with the weights in front");
    let pattern = Pattern::of(&runs[..3]).expect("a pattern");
    let values = pattern.values(&runs[3]).expect("the last run");
    assert_eq!(values, Values { inputs: vec![&[4; 64]], outputs: vec![&[8; 64]] });
    // Parts without an input are one run.
    let mut tape = Tape::new(0);
    tape.allocate(0, 64).upload(data, &[1; 64]);
    for result in [2, 4, 8] {
        tape.scale(0, 16).download(data, &[result; 64]);
    }
    let file = tape.end();
    let session = steps(&file).expect("steps");
    assert_eq!(Run::all(&session).len(), 1);
    // Two alike parts are one run.
    let mut tape = Tape::new(0);
    tape.allocate(0, 64);
    for input in 1..=2 {
        tape.upload(data, &[input; 64]).scale(0, 16).download(data, &[input * 2; 64]);
    }
    let file = tape.end();
    let session = steps(&file).expect("steps");
    assert_eq!(Run::all(&session).len(), 1);
}

#[test]
fn long_copies_are_one_step_and_fills_are_bytes_or_constants() {
    let file = |input: u8| {
        let mut tape = Tape::new(0);
        let (at, bytes) = (tape.at(0), COPY_BYTES_MAX as u64 + 8);
        tape.allocate(0, bytes);
        tape.upload(at, &vec![input; COPY_BYTES_MAX]).upload(at + COPY_BYTES_MAX as u64, &[input; 8]);
        for (value, size) in [(0x0707, 2), (0x0102, 2)] {
            tape.call(Record::Fill { stream: 0, to: at, pitch: 8, width: 2, height: 3, value, size }, &[]);
        }
        tape.call(Record::CopyWithin { stream: 0, to: at + 64, from: at, bytes: 32 }, &[]);
        tape.download(at, &[0; 16]);
        tape.end()
    };
    let files = [file(1), file(2)];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    assert_eq!(sessions[0].steps.len(), 5);
    let pattern = Pattern::of(&sessions.each_ref().map(Run::whole)).expect("a pattern");
    let function = Function::of(&pattern, &writes).expect("a function");
    let long = COPY_BYTES_MAX as u64 + 8;
    assert_eq!(names(&function), [("in0", long), ("out0", 16), ("memory0", long), ("const0", 4)]);
    assert_eq!(function.buffers[3].contents, Some(Cow::Owned(vec![2, 1, 2, 1])));
    let place = |buffer, offset| Place { buffer, offset };
    let mut expected = vec![Operation::Copy { to: place(2, 0), from: place(0, 0), bytes: long }];
    expected.extend([0, 8, 16].map(|offset| Operation::Fill { to: place(2, offset), bytes: 4, value: 7 }));
    expected.extend([0, 8, 16].map(|at| Operation::Copy { to: place(2, at), from: place(3, 0), bytes: 4 }));
    expected.push(Operation::Copy { to: place(2, 64), from: place(2, 0), bytes: 32 });
    expected.push(Operation::Copy { to: place(1, 0), from: place(2, 0), bytes: 16 });
    assert_eq!(function.operations, expected);
}

#[test]
fn equal_fills_share_a_constant_of_limited_size() {
    let function = |bytes: u64, fills: &[u32]| {
        let file = |input: u8| {
            let mut tape = Tape::new(0);
            let at = tape.at(0);
            tape.allocate(0, bytes).upload(at, &[input; 8]);
            for &value in fills {
                let width = bytes / 4;
                tape.call(Record::Fill { stream: 0, to: at, pitch: 0, width, height: 1, value, size: 4 }, &[]);
            }
            tape.download(at, &[0; 8]);
            tape.end()
        };
        let files = [file(1), file(2)];
        let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
        let pattern = Pattern::of(&sessions.each_ref().map(Run::whole)).expect("a pattern");
        Function::of(&pattern, &writes).map(|function| function.buffers.len()).map_err(|why| why.to_string())
    };
    // An input, an output and memory; then a constant for each value.
    assert_eq!(function(64, &[1, 1, 2]), Ok(5));
    let why = function(33 << 20, &[1, 2]).expect_err("too large constants");
    assert!(why.contains("fills 69206016 bytes with elements; a function may have 67108864"), "{why}");
}

#[test]
fn empty_copies_and_unloaded_variables_are_no_obstacle() {
    let file = |input: u8| {
        session(0, input, |tape| {
            let (copy, size) = (Record::CopyWithin { stream: 0, to: 1, from: 1, bytes: 0 }, 64);
            tape.call(copy, &[]).call(Record::CopyOut { stream: 0, from: 1, bytes: 0 }, &[]);
            // The variable of the second module lies where that of the first one was.
            for (module, at) in [(9, MEMORY.at - 128), (10, MEMORY.at - 160)] {
                let span = [at, size].map(u64::to_le_bytes).concat();
                tape.call(Record::GetVariable { module, name: "table" }, &span);
                tape.call(Record::UnloadModule { module }, &[]);
            }
        })
    };
    let files = [file(1), file(2)];
    let sessions = files.each_ref().map(|file| steps(file).expect("steps"));
    assert!(Pattern::of(&sessions.each_ref().map(Run::whole)).is_ok());
    assert_eq!(sessions[0].steps.len(), 4);
}

#[test]
fn calls_that_functions_do_not_have_are_refused() {
    let why = |change: &dyn Fn(&mut Tape)| refusal(steps(&session(0, 1, change)));
    let launch = Record::Launch {
        stream: 0,
        kernel: 1,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: 1,
        params: &[0; 12],
    };
    let copy = Record::CopyWithin { stream: 0, to: MEMORY.at, from: MEMORY.at, bytes: 1000 };
    let variable = Record::GetVariable { module: 9, name: "table" };
    let span = [MEMORY.at + (1 << 29), 64].map(u64::to_le_bytes).concat();
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Tape));
    let cases: [Case<'_>; 6] = [
        ("call 8 (cuLaunchKernel) is a cooperative launch", &|tape| {
            tape.call(launch, &[]);
        }),
        ("call 8 (cuLaunchKernel) failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)", &|tape| {
            tape.fail(launch, Code::ILLEGAL_ADDRESS);
        }),
        ("call 8 (cuMemcpyDtoD) uses 1000 bytes at 0x10000000000, which are not allocated", &|tape| {
            tape.call(copy, &[]);
        }),
        ("call 8 (cuLaunchKernel) has a parameter (0) with the address 0x10000002000, which is not", &|tape| {
            tape.scale(2, 1);
        }),
        ("call 8 (cuMemcpyHtoD) copies an address of device memory to the device (byte 8 of", &|tape| {
            let data = [0, tape.at(0)].map(u64::to_le_bytes).concat();
            tape.upload(tape.at(1), &data);
        }),
        ("call 9 (cuMemcpyHtoD) uses `table`, a variable of a module", &|tape| {
            tape.call(variable, &span).upload(MEMORY.at + (1 << 29), &[1; 4]);
        }),
    ];
    for (expected, change) in cases {
        let why = why(change);
        assert!(why.starts_with(expected), "{why}");
    }
    // A question that was answered with no.
    let query = Record::QueryStream { stream: 0 };
    assert!(
        steps(&session(0, 1, |tape| {
            tape.fail(query, Code::NOT_READY);
        }))
        .is_ok()
    );
}

#[test]
fn cut_and_damaged_recordings_are_refused() {
    let file = session(0, 1, |_| ());
    assert!(Recording::read(&file).is_ok());
    for end in 0..file.len() {
        assert!(Recording::read(&file[..end]).is_err(), "cut at {end}");
    }
    assert_eq!(Recording::read(&file[..file.len() - 16]), Err(RecordingError::Incomplete));
    assert_eq!(Recording::read(b"kg"), Err(RecordingError::NotARecording));
    let mut newer = file.clone();
    newer[8] = 3;
    assert_eq!(Recording::read(&newer), Err(RecordingError::Version(3)));
    let mut longer = file.clone();
    longer.push(0);
    assert!(Recording::read(&longer).is_err());
    // No byte of it makes reading panic.
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 0xff;
        if let Ok(recording) = Recording::read(&damaged) {
            let _ = Steps::of(recording);
        }
    }
}
