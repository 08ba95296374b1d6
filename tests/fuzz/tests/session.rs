//! Fuzz targets of sessions: any bytes are records or an error, records are read as they are
//! written, and a server carries any message out without a panic.

use atoll_session::{
    Answer, Backend, Channel, Code, DeviceFacts, Frame, Function, Hello, Item, KERNEL_ATTRIBUTES, KernelFacts, Kind,
    Launch, LoadFailure, Lost, Offer, Operation, Output, Pass, Pattern, Place, Places, Record, Recording, Replayer,
    Resume, Run, Span, Steps, Welcome, recording_head, records,
};
use bolero::check;

/// The session's memory.
const MEMORY: Span = Span { at: 1 << 40, bytes: 1 << 20 };

/// SHA-256 of `abc`.
const ABC: [u8; 32] = [
    0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03, 0x61,
    0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad,
];

/// A device on which everything succeeds, after a check that the addresses are the session's.
struct Device;

fn check(at: u64, bytes: u64) -> Result<(), Code> {
    assert!(MEMORY.contains(Span { at, bytes }), "{bytes} bytes at {at:#x} are not the session's");
    Ok(())
}

impl Backend for Device {
    type Stream = ();
    type Event = ();
    type Module = ();
    type Kernel = ();

    fn stream(&mut self, _flags: u32, _priority: i32) -> Result<(), Code> {
        Ok(())
    }

    fn event(&mut self, _flags: u32) -> Result<(), Code> {
        Ok(())
    }

    fn load(&mut self, _image: &[u8]) -> Result<(), LoadFailure> {
        Ok(())
    }

    fn unload(&mut self, _module: &()) {}

    fn kernel(&mut self, _module: &(), name: &str) -> Result<((), KernelFacts), Code> {
        let params = vec![(0, name.len() as u32)];
        Ok(((), KernelFacts { params, attributes: [1024; KERNEL_ATTRIBUTES] }))
    }

    fn variable(&mut self, _module: &(), _name: &str) -> Result<Span, Code> {
        Ok(Span { at: MEMORY.at, bytes: 64 })
    }

    fn set_attribute(&mut self, _kernel: &(), _attribute: i32, _value: i32) -> Result<(), Code> {
        Ok(())
    }

    fn copy_in(&mut self, _stream: Option<&()>, to: u64, bytes: &[u8]) -> Result<(), Code> {
        check(to, bytes.len() as u64)
    }

    fn copy_out(&mut self, _stream: Option<&()>, from: u64, bytes: &mut [u8]) -> Result<(), Code> {
        check(from, bytes.len() as u64)
    }

    fn copy_within(&mut self, _stream: Option<&()>, to: u64, from: u64, bytes: u64) -> Result<(), Code> {
        check(to, bytes)?;
        check(from, bytes)
    }

    fn fill(&mut self, _stream: Option<&()>, to: u64, _value: u32, size: u32, count: u64) -> Result<(), Code> {
        check(to, count * u64::from(size))
    }

    fn launch(&mut self, _stream: Option<&()>, _kernel: &(), launch: Launch<'_>) -> Result<(), Code> {
        assert!(launch.grid.iter().chain(&launch.block).all(|size| *size > 0));
        Ok(())
    }

    fn record(&mut self, _event: &(), _stream: Option<&()>) -> Result<(), Code> {
        Ok(())
    }

    fn wait(&mut self, _stream: Option<&()>, _event: &()) -> Result<(), Code> {
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Code> {
        Ok(())
    }

    fn synchronize_stream(&mut self, _stream: Option<&()>) -> Result<(), Code> {
        Ok(())
    }

    fn synchronize_event(&mut self, _event: &()) -> Result<(), Code> {
        Ok(())
    }

    fn query_stream(&mut self, _stream: Option<&()>) -> Result<(), Code> {
        Err(Code::NOT_READY)
    }

    fn query_event(&mut self, _event: &()) -> Result<(), Code> {
        Err(Code::NOT_READY)
    }

    fn elapsed(&mut self, _start: &(), _end: &()) -> Result<f32, Code> {
        Ok(0.5)
    }
}

/// Bytes of answers.
#[derive(Default)]
struct Answers(Vec<u8>);

impl Output for Answers {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// Reads the bytes as records, writes them again, and carries them out.
fn exercise(bytes: &[u8]) {
    let read: Vec<Record<'_>> = records(bytes).map_while(Result::ok).collect();
    let mut written = Vec::new();
    read.iter().for_each(|record| record.write(&mut written));
    assert_eq!(written, bytes[..written.len()], "records are not read as they are written");
    let mut replayer = Replayer::new(Device, MEMORY);
    replayer.offer();
    for (sequence, kind) in [Kind::Post, Kind::Call, Kind::Call].into_iter().enumerate() {
        let mut answers = Answers::default();
        let frame = Frame { kind, sequence: sequence as u32, bytes: bytes.len() as u64 };
        if replayer.run(frame, bytes, &mut answers).is_err() {
            return;
        }
        assert_eq!(kind == Kind::Call, !answers.0.is_empty(), "a call is answered");
    }
}

/// One of each record of a program, with numbers from the input.
fn program(numbers: &[u8; 12]) -> Vec<u8> {
    let at = |index: usize| MEMORY.at + u64::from(numbers[index]) * 512;
    let size = |index: usize| u64::from(numbers[index]);
    let id = |index: usize| u32::from(numbers[index] % 4);
    let (image, digest) = (b"abc", if numbers[0] < 200 { ABC } else { [0; 32] });
    let mut bytes = Vec::new();
    for record in [
        Record::Allocate { at: at(0), bytes: size(1) * 8 },
        Record::Allocate { at: at(2), bytes: size(3) },
        Record::CopyIn { stream: id(4), to: at(0) + size(5), bytes: image },
        Record::Fill {
            stream: id(4),
            to: at(0) + size(6),
            pitch: size(7),
            width: size(8),
            height: size(9),
            value: 1,
            size: id(10) + 1,
        },
        Record::CreateStream { stream: id(4), flags: 0, priority: 0 },
        Record::CreateEvent { event: id(5), flags: 0 },
        Record::RecordEvent { event: id(6), stream: id(7) },
        Record::WaitEvent { stream: id(8), event: id(9) },
        Record::LoadModule { module: id(4), digest, image },
        Record::GetKernel { kernel: id(5), module: id(6), name: "kernel" },
        Record::GetVariable { module: id(6), name: "v" },
        Record::Free { at: at(2) },
        Record::CopyWithin { stream: 0, to: at(0), from: at(2) + size(5), bytes: size(6) },
        Record::UnloadModule { module: id(7) },
    ] {
        record.write(&mut bytes);
    }
    bytes
}

#[test]
fn any_bytes() {
    check!().for_each(|bytes: &[u8]| {
        exercise(bytes);
        let _ = DeviceFacts::read(bytes);
        let _ = KernelFacts::read(bytes);
        if let Ok(offer) = Offer::read(bytes) {
            assert_eq!(Offer::read(&offer.write()), Ok(offer), "offers are read as they are written");
        }
        if let Some(places) = Places::read(bytes, bytes.len()) {
            assert!(places.write() == bytes && places.bytes() <= bytes.len());
        }
        if let Some(first) = bytes.first_chunk() {
            let _ = Frame::read(first);
        }
        if let Some(first) = bytes.first_chunk() {
            let _ = Hello::read(first);
        }
        if let Some(first) = bytes.first_chunk() {
            let _ = Welcome::read(first);
        }
        if let Some(first) = bytes.first_chunk() {
            let _ = Answer::read(first);
        }
        if let Some(first) = bytes.first_chunk() {
            let _ = Pass::read(first);
        }
        if let Some(first) = bytes.first_chunk() {
            let _ = Resume::read(first);
        }
        let _ = Channel::new().take(bytes);
    });
}

#[test]
fn segments_with_any_numbers() {
    check!().with_type::<Vec<(u8, u8, u8)>>().for_each(|segments| {
        let mut channel = Channel::new();
        let mut arrived = 0;
        for (kind, bytes, number) in segments.iter().take(64) {
            let (kind, count) = (u32::from(kind % 5), usize::from(*bytes));
            channel.push(&[7; 16]);
            channel.fill(&mut Vec::new());
            let head = [kind.to_le_bytes(), (count as u32).to_le_bytes()].concat();
            let data = if kind == 0 { vec![1; count] } else { Vec::new() };
            if channel.take(&[head, u64::from(*number).to_le_bytes().to_vec(), data].concat()).is_err() {
                return;
            }
            arrived += if kind == 0 { count as u64 } else { 0 };
            assert_eq!(channel.received(), arrived, "each byte counts once");
            channel.consume(usize::from(*number));
            if number % 7 == 0 {
                // A number of bytes that were not sent is an error.
                let _ = channel.resume((*bytes).into());
            }
        }
    });
}

#[test]
fn programs_with_any_numbers() {
    check!().with_type::<[u8; 12]>().for_each(|numbers| exercise(&program(numbers)));
}

#[test]
fn mutated_programs() {
    check!().with_type::<([u8; 12], Vec<(u16, u8)>)>().for_each(|(numbers, changes)| {
        let mut bytes = program(numbers);
        for (at, byte) in changes.iter().take(6) {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *byte;
        }
        exercise(&bytes);
    });
}

#[test]
fn stored_functions_of_any_bytes() {
    check!().with_type::<([u8; 12], Vec<(u8, u8)>, Vec<u8>)>().for_each(|(numbers, places, contents)| {
        let records = program(numbers);
        let mut at = 0u32;
        let places: Vec<u8> = places
            .iter()
            .flat_map(|(gap, bytes)| {
                let start = at + u32::from(*gap);
                at = start + u32::from(*bytes);
                [start, at]
            })
            .flat_map(u32::to_le_bytes)
            .collect();
        let inputs = Places::read(&places, records.len()).map_or(0, |places| places.bytes());
        let mut contents = contents.clone();
        if numbers[11] > 20 {
            contents.resize(inputs, 7);
        }
        let mut stored = Vec::new();
        Record::Store { function: 1, inputs: &places }.write(&mut stored);
        stored.extend_from_slice(&records);
        let mut called = Vec::new();
        Record::Call { function: 1, inputs: &contents }.write(&mut called);
        let mut replayer = Replayer::new(Device, MEMORY);
        replayer.offer();
        for (sequence, bytes) in [&stored, &called, &called].into_iter().enumerate() {
            let mut answers = Answers::default();
            let frame = Frame { kind: Kind::Call, sequence: sequence as u32, bytes: bytes.len() as u64 };
            if replayer.run(frame, bytes, &mut answers).is_err() {
                return;
            }
            assert!(!answers.0.is_empty(), "a call is answered");
        }
        assert_eq!(replayer.report().stored.calls, 2);
    });
}

/// A recording of calls that all succeed. They copy this data to the device. A launch and a copy to
/// the host follow.
fn recorded(calls: &[Record<'_>], data: &[u8]) -> Vec<u8> {
    let facts = KernelFacts { params: vec![(0, 8), (8, 16)], attributes: [1; KERNEL_ATTRIBUTES] }.write();
    let variable = [MEMORY.at + (1 << 19), 8].map(u64::to_le_bytes).concat();
    let memory = calls
        .iter()
        .find_map(|call| if let Record::Allocate { at, bytes } = call { Some((*at, *bytes)) } else { None });
    let (at, bytes) = memory.unwrap_or((MEMORY.at, 0));
    let params = [at, at + bytes, 5].map(u64::to_le_bytes).concat();
    let mut file = recording_head(MEMORY);
    let mut write = |call: Record<'_>| {
        let answer = match call {
            Record::GetKernel { .. } => facts.as_slice(),
            Record::GetVariable { .. } => variable.as_slice(),
            _ => &[],
        };
        if let Record::CopyOut { bytes, .. } = call {
            Item::Part(&vec![0; bytes as usize]).write(&mut file);
        }
        Item::Call(&call, Ok(answer)).write(&mut file);
    };
    for call in calls {
        match *call {
            Record::CopyIn { stream, to, .. } => write(Record::CopyIn { stream, to, bytes: data }),
            Record::GetKernel { kernel, module, name } => {
                write(Record::GetKernel { kernel, module, name });
                let (grid, block, shared_bytes, cooperative) = ([1; 3], [1; 3], 0, 0);
                write(Record::Launch { stream: 0, kernel, grid, block, shared_bytes, cooperative, params: &params });
            }
            other => write(other),
        }
    }
    write(Record::CopyOut { stream: 0, from: at, bytes });
    Item::End.write(&mut file);
    file
}

#[test]
fn any_bytes_are_a_recording_or_an_error() {
    check!().for_each(|bytes: &[u8]| {
        let items = [recording_head(MEMORY).as_slice(), bytes].concat();
        for file in [bytes, &items] {
            if let Ok(recording) = Recording::read(file) {
                let _ = Steps::of(recording);
            }
        }
    });
}

#[test]
fn functions_of_recordings_stay_inside_their_buffers() {
    check!().with_type::<[u8; 12]>().for_each(|numbers| {
        let bytes = program(numbers);
        let calls: Vec<Record<'_>> = records(&bytes).map_while(Result::ok).collect();
        let files = [b"abc", b"abd"].map(|data| recorded(&calls, data));
        let sessions = files.each_ref().map(|file| Steps::of(Recording::read(file).expect("a recording")));
        let [Ok(one), Ok(two)] = &sessions else { return };
        let runs = [Run::whole(one), Run::whole(two)];
        let Ok(pattern) = Pattern::of(&runs) else { return };
        for writes in [None, Some(Vec::new()), Some(vec![(0, 0)])] {
            let Ok(function) = Function::of(&pattern, &|_| writes.clone()) else { continue };
            let check = |place: &Place, bytes: u64| {
                assert!(place.offset + bytes <= function.buffers[place.buffer].bytes, "{function:?}");
            };
            for operation in &function.operations {
                match operation {
                    Operation::Copy { to, from, bytes } => {
                        check(to, *bytes);
                        check(from, *bytes);
                    }
                    Operation::Fill { to, bytes, .. } => check(to, *bytes),
                    Operation::Launch { params, .. } => {
                        params.iter().flat_map(|param| &param.addresses).for_each(|(_, place)| check(place, 0));
                    }
                }
            }
        }
    });
}
