//! Tests of the stand-in through `runtime/hip`. The tests of the device (`runtime/devices/hip`) run
//! kernels on it.

use atoll_hip::{DeviceMemory, Driver, Event, HostWords, MemoryHandle, Stream, UnitMask, status};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The environment variable that passes a memory handle to a child process.
const HANDLE: &str = "ATOLL_TEST_HANDLE";

fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.ancestors().nth(2).expect("a folder of targets").join("libatoll_stand_in_hip.so")
}

fn context() -> Arc<atoll_hip::Context> {
    Driver::load_from(&library()).expect("the stand-in").gpu(0).expect("a device").enter().expect("it can be used")
}

#[test]
fn the_device_has_the_properties_of_its_options() {
    let context = context();
    let gpu = context.gpu();
    assert_eq!(gpu.driver().device_count(), Ok(1));
    assert_eq!(gpu.driver().version(), Ok(60_200_000));
    assert_eq!(gpu.name().as_deref(), Ok("stand-in"));
    assert_eq!(gpu.architecture().as_deref(), Ok("gfx90a:sramecc+:xnack-"));
    assert_eq!(gpu.pci_bus_id().as_deref(), Ok("0000:01:00.0"));
    assert_eq!((gpu.compute_units(), gpu.wave_lanes(), gpu.lds_bytes()), (Ok(8), Ok(64), Ok(64 << 10)));
    assert_eq!(context.highest_priority(), Ok(-1));
}

#[test]
fn copies_and_fills_of_a_stream_are_in_order() {
    let context = context();
    let (stream, memory) =
        (Stream::new(&context, 0).expect("a stream"), DeviceMemory::new(&context, 64).expect("room"));
    let mut bytes = [0; 8];
    stream.read(&memory, 0, &mut bytes).expect("memory");
    assert_eq!(bytes, [0xcb; 8], "new memory has arbitrary contents");
    stream.fill(&memory, 0, 7, 64).expect("memory");
    stream.write(&memory, 4, &[1, 2, 3, 4]).expect("memory");
    stream.copy(&memory, 4, 32, 4).expect("memory");
    stream.write_word(&memory, 36, 0x0908_0706).expect("memory");
    stream.read(&memory, 32, &mut bytes).expect("memory");
    assert_eq!(bytes, [1, 2, 3, 4, 6, 7, 8, 9]);
    let beyond = stream.read(&memory, 60, &mut bytes).expect_err("outside");
    assert_eq!((beyond.code, beyond.name.as_str()), (status::INVALID_VALUE, "hipErrorInvalidValue"));
}

#[test]
fn streams_wait_for_events_of_others() {
    let context = context();
    let [first, second] = [0, -1].map(|priority| Stream::new(&context, priority).expect("a stream"));
    let (began, ended) = (Event::new(&context).expect("an event"), Event::new(&context).expect("an event"));
    assert_eq!(began.is_passed(), Ok(true), "it was never recorded");
    began.record(&first).expect("recorded");
    second.wait_for(&began).expect("it waits");
    ended.record(&second).expect("recorded");
    ended.synchronize().expect("it passes");
    assert!(began.is_passed() == Ok(true) && second.is_idle() == Ok(true));
    assert!(ended.nanos_since(&began).expect("both have passed") < 1_000_000_000);
    context.synchronize().expect("all work ends");
}

#[test]
fn streams_know_their_compute_units() {
    let context = context();
    let mask = UnitMask::new([1, 5]).expect("units");
    let stream = Stream::on_units(&context, &mask).expect("a stream");
    assert_eq!(stream.units(8).map(|units| units.units().collect::<Vec<_>>()), Ok(vec![1, 5]));
    let all = Stream::new(&context, 0).expect("a stream");
    assert_eq!(all.units(8).map(|units| units.count()), Ok(8));
    let none = UnitMask::new([100]).expect("a unit that the device does not have");
    assert_eq!(Stream::on_units(&context, &none).expect_err("refused").code, status::INVALID_VALUE);
}

#[test]
fn pinned_words_have_an_address_for_the_device() {
    let context = context();
    let words = HostWords::new(&context, 4).expect("memory");
    words.word(3).store(5, SeqCst);
    let (stream, memory) = (Stream::new(&context, 0).expect("a stream"), DeviceMemory::new(&context, 4).expect("room"));
    stream.fill(&memory, 0, 0, 4).expect("memory");
    assert!(words.address().is_multiple_of(4) && words.word(3).load(SeqCst) == 5);
}

#[test]
fn memory_is_counted_and_freed() {
    let context = context();
    let (_, total) = context.memory_bytes().expect("sizes");
    assert_eq!(total, 1 << 30);
    let too_much = DeviceMemory::new(&context, 2 << 30).expect_err("there is less");
    assert!(too_much.is_out_of_memory());
    for _ in 0..20 {
        drop(DeviceMemory::new(&context, 512 << 20).expect("what was freed is free"));
    }
}

#[test]
fn unknown_code_is_refused() {
    let context = context();
    let refused = |code: &[u8]| atoll_hip::Module::load(&context, code).expect_err("no code").code;
    assert_eq!(refused(b"\x7fELF"), status::INVALID_IMAGE);
    assert_eq!(refused(&[0; 200]), status::INVALID_IMAGE);
    let mut empty = vec![0; 64];
    empty[..6].copy_from_slice(b"\x7fELF\x02\x01");
    empty[0x28] = 64;
    assert_eq!(refused(&empty), status::INVALID_IMAGE);
}

#[test]
fn waves_are_not_reset_without_the_extension() {
    assert_eq!(context().reset_waves().expect_err("no extension").code, status::NOT_SUPPORTED);
}

#[test]
fn device_memory_is_shared_with_another_process() {
    let context = context();
    let (stream, memory) =
        (Stream::new(&context, 0).expect("a stream"), DeviceMemory::new(&context, 4096).expect("room"));
    stream.write(&memory, 0, b"constants of a model").expect("memory");
    let handle = memory.share().expect("a handle");
    let own = DeviceMemory::open(&context, handle, 4096).expect_err("a process cannot open its own memory");
    assert_eq!(own.code, status::INVALID_CONTEXT);
    let text = handle.bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string grows");
        text
    });
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "opens_shared_memory", "--ignored", "--nocapture"])
        .env(HANDLE, text)
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "`device_memory_is_shared_with_another_process` runs it"]
fn opens_shared_memory() {
    let text = std::env::var(HANDLE).expect("a handle");
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("digits");
    let handle = MemoryHandle { bytes: std::array::from_fn(byte) };
    let context = context();
    let shared = DeviceMemory::open(&context, handle, 4096).expect("memory of the parent");
    let stream = Stream::new(&context, 0).expect("a stream");
    let mut bytes = [0; 20];
    stream.read(&shared, 0, &mut bytes).expect("memory");
    assert_eq!(&bytes, b"constants of a model");
    assert_eq!(stream.read(&shared, 4090, &mut bytes).expect_err("outside").code, status::INVALID_VALUE);
    let damaged = MemoryHandle { bytes: [1; 64] };
    assert_eq!(DeviceMemory::open(&context, damaged, 4096).expect_err("no handle").code, status::INVALID_VALUE);
}
