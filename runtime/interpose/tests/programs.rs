//! Unmodified C programs. Each runs directly on the stand-in driver, and through this library and a
//! server on the stand-in driver. The outputs must be equal.

#![cfg(target_arch = "x86_64")]

use atoll_cuda::Gpu;
use atoll_session::{Address, Report};
use atoll_session_server::{LIBRARY, Libraries, Options, STAND_IN, Server, environment, open};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of a test that waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Device memory of a session in these tests.
const SESSION_BYTES: u64 = 64 << 20;

/// A library that cargo built for this test.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors().nth(1).expect("target/<profile>/deps").join(name)
}

/// The stand-in driver, loaded into this process for all servers.
fn gpu() -> Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| open(Some(&library(STAND_IN)), 0).expect("the stand-in driver")).clone()
}

/// Programs, and folders in which they find a driver.
struct Built {
    folder: TempDir,
}

impl Built {
    fn linked(&self) -> PathBuf {
        self.folder.path().join("linked")
    }

    /// The program that finds its calls by `cuGetProcAddress`.
    fn looking(&self) -> PathBuf {
        self.folder.path().join("looking")
    }

    /// The command of a program that finds its driver in one of the folders.
    fn command(&self, program: &Path, driver: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.folder.path().join(driver)).env_remove("ATOLL_SESSION");
        command
    }
}

/// Compiles the programs, once.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, file) in [("shim", LIBRARY), ("direct", STAND_IN)] {
            let place = folder.path().join(name);
            std::fs::create_dir(&place).expect("a folder");
            environment(&place, &library(file), &Address::Tcp(String::new()), Libraries::Atoll).expect("links");
        }
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let compile = |name: &str, source: &str, options: &[&str]| {
            let mut command = Command::new("cc");
            command.args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(folder.path().join(name));
            command.arg(sources.join(source));
            let output = command.args(options).output().expect("a C compiler");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let search = format!("-L{}", folder.path().join("shim").display());
        compile("linked", "main.c", &[&search, "-l:libcuda.so.1"]);
        compile("looking", "main.c", &["-DLOOKUP", "-ldl"]);
        compile("graphs", "graphs.c", &[&search, "-l:libcuda.so.1"]);
        compile("tables", "tables.c", &[&search, "-l:libcuda.so.1"]);
        compile("virtual", "virtual.c", &[&search, "-l:libcuda.so.1"]);
        compile("memory", "memory.c", &[&search, "-l:libcuda.so.1"]);
        compile("frameworks", "frameworks.c", &[&search, "-l:libcuda.so.1"]);
        Built { folder }
    })
}

/// A server on a Unix socket.
struct Sessions {
    server: Server,
    address: Address,
    _folder: TempDir,
}

impl Sessions {
    fn start() -> Sessions {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sessions.sock");
        let options = Options { gpu: gpu(), session_bytes: Some(SESSION_BYTES), sessions_max: 8, recordings: None };
        let server = Server::start(options, &path).expect("a server");
        Sessions { server, address: Address::Unix(path), _folder: folder }
    }

    /// The report of the only session so far.
    fn report(&self) -> Report {
        let ended = self.server.wait_ended(1, PATIENCE);
        assert_eq!(ended.len(), 1, "one session");
        assert_eq!(ended[0].why, None);
        ended[0].report
    }
}

/// The output and errors of a program that succeeds.
fn output(command: &mut Command) -> (String, String) {
    let output = command.output().expect("the program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{errors}", output.status);
    (out, errors)
}

/// Runs a program in a session. Returns its output, the session's report, and the lines that the
/// library printed.
fn in_session(program: &str, what: &str) -> (String, Report, String) {
    let sessions = Sessions::start();
    let mut command = built().command(&built().folder.path().join(program), "shim");
    let (text, said) = output(command.env("ATOLL_SESSION", sessions.address.to_string()).arg(what));
    let report = sessions.report();
    print(&[program, what], &report);
    (text, report, said)
}

/// Runs a program directly and in a session. Returns its output, the session's report, and the
/// lines that the library printed.
fn both(program: &Path, arguments: &[&str]) -> (String, Report, String) {
    let (direct, _) = output(built().command(program, "direct").args(arguments));
    let sessions = Sessions::start();
    let mut command = built().command(program, "shim");
    let (shim, said) = output(command.env("ATOLL_SESSION", sessions.address.to_string()).args(arguments));
    assert_eq!(shim, direct, "{said}");
    let report = sessions.report();
    print(arguments, &report);
    // Besides copies to the host, only facts and waits get answers.
    assert!(report.answers <= report.messages);
    (direct, report, said)
}

#[allow(clippy::print_stdout, reason = "the counts are a result")]
fn print(arguments: &[&str], report: &Report) {
    let Report { calls, messages, answers, launches, copies_in, copies_out, .. } = report;
    println!(
        "{}: {calls} recorded calls, {messages} messages, {answers} waits; {launches} launches, {copies_in} copies \
         to the device, {copies_out} back",
        arguments.join(" ")
    );
}

#[test]
fn vectors_are_added() {
    let (text, report, said) = both(&built().linked(), &["add"]);
    assert!(text.contains("1 device, Atoll stand-in 0 (host CPU, no GPU)"), "{text}");
    assert_eq!(said, "");
    assert_eq!((report.launches, report.copies_out, report.images, report.failures), (2, 2, 1, 0));
    // One answer each for the image, the kernel, and two copies to the host.
    assert_eq!((report.answers, report.messages), (4, 4));
}

#[test]
fn a_program_that_looks_its_calls_up_does_the_same() {
    let (_, report, _) = both(&built().looking(), &["add"]);
    assert_eq!(report.answers, 4);
}

#[test]
fn each_copy_back_is_one_message() {
    let (_, report, _) = both(&built().linked(), &["loop", "500"]);
    assert_eq!((report.launches, report.copies_in, report.copies_out), (500, 500, 500));
    // One answer for the image and one for the kernel; the rest are copies to the host.
    assert_eq!((report.answers, report.messages), (502, 502));
}

#[test]
fn work_that_repeats_is_sent_as_one_record() {
    let stored = |arguments: &[&str]| {
        let (direct, _) = output(built().command(&built().linked(), "direct").args(arguments));
        let sessions = Sessions::start();
        let mut command = built().command(&built().linked(), "shim");
        command.env("ATOLL_SESSION", sessions.address.to_string()).env("ATOLL_SESSION_TERMS", "stored_functions=3");
        let (shim, said) = output(command.args(arguments));
        assert_eq!(shim, direct, "{said}");
        (sessions.report(), said)
    };
    let (report, said) = stored(&["loop", "500"]);
    assert_eq!(said, "atoll: 3 calls are stored function 1 from now on, with 256 bytes of input\n");
    assert_eq!((report.launches, report.messages, report.failures), (500, 502, 0));
    // The image, the kernel, an allocation with the first run, three runs, and the one that is
    // stored. Each of the others is one record.
    assert_eq!((report.calls, report.records), (2 + 4 + 499 * 3, 2 + 4 + 3 * 3 + 4 + 495));
    assert_eq!((report.stored.calls, report.stored.stores, report.stored.differences), (495, 1, 0));
    for arguments in [["streams", ""], ["threads", ""], ["errors", ""]] {
        stored(&arguments);
    }
}

#[test]
fn streams_events_and_pinned_memory_work() {
    let (text, report, said) = both(&built().looking(), &["streams"]);
    assert!(text.contains("time passed"), "{text}");
    assert_eq!((said.as_str(), report.failures), ("", 0));
    // Each of 20 rounds waits for an event; 5 copies back come with 4 answers.
    assert_eq!((report.launches, report.copies_out, report.answers), (60, 5, 30));
}

#[test]
fn errors_are_those_of_the_driver() {
    let (text, _, said) = both(&built().linked(), &["errors"]);
    assert!(text.contains("synchronize: 700\ncopy: 700\nallocate: 700\nlaunch: 700"), "{text}");
    assert_eq!(said, "", "no call that was only recorded failed");
}

#[test]
fn threads_share_a_session() {
    let (_, report, _) = both(&built().linked(), &["threads"]);
    assert_eq!((report.launches, report.allocations, report.failures), (100, 100, 0));
    assert_eq!((report.copies_out, report.answers), (100, 102), "waiting for a stream that has copied back is free");
}

#[test]
fn rows_and_libraries_work() {
    let sessions = Sessions::start();
    let mut command = built().command(&built().linked(), "shim");
    let (text, said) = output(command.env("ATOLL_SESSION", sessions.address.to_string()).arg("rows"));
    assert_eq!(text, "rows and libraries\n");
    // Printed once, although the program calls it twice.
    assert_eq!(
        said,
        "atoll: cuCtxEnablePeerAccess is not supported in sessions; it returns CUDA_ERROR_NOT_SUPPORTED\n"
    );
    let report = sessions.report();
    assert_eq!((report.copies_out, report.answers, report.failures), (5, 4, 0), "rows come with one answer");
}

#[test]
fn captured_work_is_launched_with_other_data_each_time() {
    let (text, report, said) = in_session("graphs", "captured");
    assert_eq!((text.as_str(), said.as_str()), ("captured\n", ""));
    // Each of 7 launches of the graph is 2 launches of kernels; one more follows.
    assert_eq!((report.launches, report.copies_in, report.copies_out, report.failures), (15, 7, 7, 0));
}

#[test]
fn built_graphs_are_launched_copied_and_updated() {
    let (text, report, said) = in_session("graphs", "built");
    assert_eq!((text.as_str(), said.as_str()), ("built\n", ""));
    // 3 launches of 2 kernels; each copies one row, and 3 rows of 2 planes.
    assert_eq!((report.launches, report.copies_out, report.failures), (6, 21, 0));
}

#[test]
fn graphs_allocate_memory() {
    let (text, report, said) = in_session("graphs", "allocated");
    let expected = "not live: 1\nstill live: 1\nfree again: 1\nfree by the graph again: 1\n";
    assert_eq!((text.as_str(), said.as_str()), (expected, ""));
    assert_eq!((report.launches, report.allocations, report.failures), (3, 2, 0));
}

#[test]
fn wrong_graphs_are_errors() {
    let (text, report, said) = in_session("graphs", "wrong");
    let expected = "flags: 1\nno node: 1\na node of another graph: 1\nan edge to another graph: 1\nan edge twice: 1\n\
        an edge to itself: 1\na stream: 1\na graph as a node: 1\nan address: 1\na graph: 1\n\
        params of another kind: 1\na large block: 1\nan element of 3 bytes: 1\n\
        rows that overlap: 1\nunknown flags: 1\na launch on the device: 801\na cycle: 1\nfreed memory: 1\n\
        synchronize: 0\nafter destroy: 1\ndestroy again: 1\nupdate after destroy: 1\ndestroy again: 1\n\
        a node that is gone: 1\n";
    assert_eq!((text.as_str(), said.as_str()), (expected, ""));
    assert_eq!((report.launches, report.failures), (1, 0), "a launch that is refused has no effect");
}

#[test]
fn calls_that_cannot_be_captured_invalidate_the_capture() {
    let (text, report, said) = in_session("graphs", "forbidden");
    let expected = "the default stream: 900\nno mode: 1\nno capture: 401\nbegin again: 401\nallocate: 900\n\
        launch: 901\nend: 901\nsynchronize: 900\nend: 901\nsynchronize all: 900\nend: 901\n\
        the default stream: 906\nend: 901\nan event outside: 0\nwait: 905\nend: 901\nquery: 907\n\
        synchronize: 907\nend: 904\nmerge: 902\nend: 901\nend: 901\nfree in order: 1\nend: 901\n\
        ask the default stream: 906\nask it for more: 906\nan event of a capture that ended: 907\n\
        an event of the other one: 907\n";
    assert_eq!((text.as_str(), said.as_str()), (expected, ""));
    assert_eq!((report.launches, report.failures), (0, 0));
}

#[test]
fn new_parameters_leave_a_launch_cooperative() {
    let (text, report, said) = in_session("graphs", "cooperative");
    assert_eq!(text, "more blocks than run at once: 720\n", "{said}");
    assert_eq!((said.lines().count(), report.failures), (1, 1), "{said}");
}

#[test]
fn memory_is_allocated_from_pools() {
    let (text, report, said) = in_session("memory", "pools");
    let expected = "beyond the maximum: 2\na pool that is gone: 1\nits attribute: 1\ndestroy again: 1\n\
        set as current: 1\nfree again: 1\nan address inside: 1\nno bytes: 1\ntoo many bytes: 2\n\
        the pool of the device: 1\na stream as a pool: 1\na pool as a stream: 400\nno attribute: 1\n\
        a count: 1\nanother device: 101\nhost memory: 801\nanother device: 101\n";
    assert_eq!((text.as_str(), said.as_str()), (expected, ""));
    assert_eq!((report.launches, report.allocations, report.failures), (10, 13, 0));
}

#[test]
fn calls_of_frameworks_exist() {
    let (text, report, said) = in_session("frameworks", "");
    let expected = "current: 1\nfewer compute units: 801\nscale of the library: 1\noccupied: 1\n\
        launched: 3 7 11 15\na cluster: 801\nlaunches of clusters: 0\nclusters: 801\nlink: 801\n\
        tensor map: 801\nmulticast: 801\nattribute of a stream: 801\n";
    assert_eq!(text, expected, "{said}");
    assert_eq!(said.lines().count(), 5, "one line for each call that is missing: {said}");
    assert_eq!((report.launches, report.failures), (1, 0));
}

#[test]
fn kernels_use_pinned_memory() {
    let (text, report, said) = in_session("memory", "mapped");
    assert_eq!(text, "not registered: 1\nnot pinned: 1\nflags: 1\nbeyond: 1\n");
    assert_eq!((said.as_str(), report.launches, report.failures), ("", 4, 0));
    assert_eq!(report.allocations, 5, "one of the program, and a copy for each launch");
}

#[test]
fn managed_memory_is_used_in_turn() {
    let (text, report, said) = in_session("memory", "managed");
    let expected = "for the host alone: 801\nno flags: 1\nno bytes: 1\ntoo many bytes: 2\none stream: 801\n\
        all streams: 0\nadvice about other memory: 1\nno advice: 1\nprefetch beyond: 1\n\
        prefetch elsewhere: 101\nprefetch to the host: 0\n";
    assert_eq!(text, expected, "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert_eq!((report.launches, report.failures), (7, 0));
}

#[test]
fn the_child_of_a_fork_has_no_driver() {
    let sessions = Sessions::start();
    let mut command = built().command(&built().linked(), "shim");
    let (text, _) = output(command.env("ATOLL_SESSION", sessions.address.to_string()).arg("fork"));
    assert_eq!(text, "child 42, parent 7\n");
    sessions.report();
}

#[test]
fn calls_at_exit_are_harmless() {
    let sessions = Sessions::start();
    let mut command = built().command(&built().linked(), "shim");
    let (text, said) = output(command.env("ATOLL_SESSION", sessions.address.to_string()).arg("exit"));
    assert_eq!((text.as_str(), said.as_str()), ("exits\n", ""));
    sessions.report();
}

#[test]
fn without_a_server_there_is_no_device() {
    for (address, expected) in [
        (None, "ATOLL_SESSION is not set"),
        (Some("nonsense"), "\"nonsense\" is not the address"),
        (Some("127.0.0.1:1"), "this library connects to Unix sockets only"),
        (Some("unix:/nowhere/sessions.sock"), "no server of sessions answers at unix:/nowhere/sessions.sock"),
    ] {
        let mut command = built().command(&built().linked(), "shim");
        if let Some(address) = address {
            command.env("ATOLL_SESSION", address);
        }
        let output = command.arg("add").output().expect("the program");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "the program ends by itself");
        assert!(text.contains("cuInit(0): CUDA_ERROR_NO_DEVICE"), "{text}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn killed_clients_leave_nothing() {
    let sessions = Sessions::start();
    // More clients in sequence than may be connected at once.
    for round in 1..=12u64 {
        let mut command = built().command(&built().linked(), "shim");
        let mut client = command
            .env("ATOLL_SESSION", sessions.address.to_string())
            .arg("hold")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut line = [0; 6];
        client.stdout.take().expect("its output").read_exact(&mut line).expect("it works");
        assert_eq!(&line, b"holds\n");
        client.kill().expect("it runs");
        client.wait().expect("it ends");
        assert_eq!(sessions.server.wait_ended(round, PATIENCE).len() as u64, round);
        assert_eq!(sessions.server.sessions(), 0);
    }
}

#[test]
fn a_server_that_is_gone_is_an_error_and_not_the_end_of_the_program() {
    let sessions = Sessions::start();
    let mut command = built().command(&built().linked(), "shim");
    let mut client = command
        .env("ATOLL_SESSION", sessions.address.to_string())
        .arg("hold")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut out = client.stdout.take().expect("its output");
    let mut line = [0; 6];
    out.read_exact(&mut line).expect("it works");
    drop(sessions);
    let mut text = String::new();
    out.read_to_string(&mut text).expect("a text");
    let mut said = String::new();
    client.stderr.take().expect("its errors").read_to_string(&mut said).expect("a text");
    // The program reports the failed call and ends by itself.
    assert_eq!(client.wait().expect("it ends").code(), Some(1));
    assert!(text.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{text}");
    assert!(said.contains("every call fails from now on"), "{said}");
}

#[test]
fn private_tables_keep_values_of_contexts_and_name_slots_that_are_not_known() {
    let (text, _, said) = in_session("tables", "all");
    assert_eq!(text, "tables\n", "{said}");
    let lines = [
        "atoll: slot 3 of a private table of NVIDIA's driver is not known (6bd5fb6c-5bf4-e74a-8987-d93912fd9df9)",
        "atoll: the program asks for a private table of NVIDIA's driver that is not known \
         (00000000-0000-0000-0000-000000000000)",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn reserved_addresses_get_memory_by_mappings() {
    let (text, report, said) = in_session("virtual", "all");
    assert_eq!(text, "virtual memory\n", "{said}");
    assert_eq!(report.failures, 0);
    let (reserve, rest) = said.split_once('\n').expect("lines");
    assert!(reserve.starts_with("atoll: cuMemAddressReserve: 1073741824 bytes are not free"), "{said}");
    assert_eq!(
        rest,
        "atoll: memory of a session that was mapped cannot be mapped at other addresses\n\
         atoll: cuMemExportToShareableHandle is not supported in sessions; it returns CUDA_ERROR_NOT_SUPPORTED\n"
    );
}
